"""The forecasters that a config can name: Leddam and its arms, its peers, plug-ins around them.

    leddam, dlinear, itransformer, nlinear, patchtst, lightts, lstm, scinet, transformer, informer
    leddam-<ablation>            an arm of the ablation study, `rflib.methods.leddam.ablations`
    leddam-positions, leddam-attn_point-positions, leddam-attn_patch-positions
                                 with positions added to the tokens of the intra-series branch
    dlinear-ld                   DLinear with the learnable kernel in its moving average's place
    <any of the first line>+raw, +ld, +mov
                                 behind no split, the learnable one, the frozen moving average

An arm and a plug-in take the hyper-parameters of the model whose name theirs begins with.
"""

from bisect import bisect_left
from typing import Any, NamedTuple

from flax import linen as nn

from rflib.core.checks import one_of
from rflib.methods.leddam.ablations import ABLATIONS
from rflib.methods.leddam.baselines import DLinear, ITransformer
from rflib.methods.leddam.informer import Informer
from rflib.methods.leddam.intervals import check_levels
from rflib.methods.leddam.lightts import LightTS
from rflib.methods.leddam.lstm import LSTM
from rflib.methods.leddam.model import Leddam
from rflib.methods.leddam.nlinear import NLinear
from rflib.methods.leddam.patchtst import PatchTST
from rflib.methods.leddam.plugin import PlugIn
from rflib.methods.leddam.quantile_head import QuantileHead
from rflib.methods.leddam.scinet import SCINet
from rflib.methods.leddam.theory import training_flops
from rflib.methods.leddam.time_features import FEATURES
from rflib.methods.leddam.transformer import Transformer

Sizes = dict[str, Any]

# Models without settings by data set: the class, and the keys of its section of the config.
_ATTENTION = ("d_model", "d_ff", "n_heads", "n_layers", "n_decoder_layers", "dropout", "label_len")
_PATCHES = ("d_model", "d_ff", "n_heads", "n_layers", "patch_len", "stride", "dropout")
PLAIN: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "nlinear": (NLinear, ()),
    "patchtst": (PatchTST, _PATCHES),
    "lightts": (LightTS, ("d_model", "chunk_size")),
    "lstm": (LSTM, ("hidden", "n_layers", "dropout")),
    "scinet": (SCINet, ("kernel_size", "n_levels", "dropout")),
    "transformer": (Transformer, _ATTENTION),
    "informer": (Informer, (*_ATTENTION, "factor", "distil")),
}
CALENDAR = ("transformer", "informer")  # can embed the dates of past and future
BACKBONES = {
    "leddam": "Leddam",
    "dlinear": "DLinear",
    "itransformer": "iTransformer",
    "nlinear": "NLinear",
    "patchtst": "PatchTST",
    "lightts": "LightTS",
    "lstm": "LSTM",
    "scinet": "SCINet",
    "transformer": "Transformer",
    "informer": "Informer",
}
PEERS = tuple(name for name in BACKBONES if name != "leddam")
# name -> (ablation, positions)
ARMS: dict[str, tuple[str, bool]] = {
    "leddam": ("full", False),
    **{f"leddam-{name}": (name, False) for name in ABLATIONS if name != "full"},
    "leddam-positions": ("full", True),
    "leddam-attn_point-positions": ("attn_point", True),
    "leddam-attn_patch-positions": ("attn_patch", True),
}
SPLITS = {"raw": "raw", "ld": "+ LD", "mov": "+ moving average"}
# name -> (backbone, split)
PLUGGED = {f"{name}+{split}": (name, split) for name in BACKBONES for split in SPLITS}
TITLES = {
    **{name: name.replace("leddam-", "Leddam ").replace("-", " with ") for name in ARMS},
    **BACKBONES,
    "dlinear-ld": "DLinear with LD inside",
    **{name: f"{BACKBONES[b]} {SPLITS[split]}" for name, (b, split) in PLUGGED.items()},
}


class Forecaster(NamedTuple):
    """A model and how it is trained.

    batch: windows a step. lr: of Adam, halved after every epoch if `halve`. epochs: at most.
    flops: of one training step per window, or None where it is not counted.
    """

    module: nn.Module
    batch: int
    lr: float
    epochs: int
    halve: bool
    flops: float | None


class Place(NamedTuple):
    """Where published settings are looked up: data set, and column of the horizon."""

    data: str
    column: int

    def row(self, table: Any) -> Any:
        """The entry of the data set, or that of all others."""
        return table[self.data if self.data in table else "other"]


def forecasters(config: Any, n_series: int, data: str, pred_len: int) -> dict[str, Forecaster]:
    """The forecasters of `config.model.names` for a data set (by name) and a horizon."""
    sizes = {"n_series": n_series, "seq_len": config.data.seq_len, "pred_len": pred_len}
    horizons = config.expect.horizons
    place = Place(data, min(bisect_left(horizons, pred_len), len(horizons) - 1))
    for name in config.model.names:
        one_of("config.model.names", name, TITLES)
    found = {name: _forecaster(config, name, sizes, place) for name in config.model.names}
    if not config.model.quantiles:
        return found
    levels = check_levels(config.model.quantiles)
    return {n: f._replace(module=QuantileHead(f.module, levels)) for n, f in found.items()}


def _forecaster(config: Any, name: str, sizes: Sizes, place: Place) -> Forecaster:
    module, backbone = _module(config, name, sizes, place)
    schedule, batch, lr = config.optim[backbone], config.batch[backbone], config.optim[backbone].lr
    flops = None
    if backbone == "leddam":
        published = place.row(config.model.published)
        batch = published.batch if batch is None else batch
        lr = published.lr if lr is None else lr
    if isinstance(module, Leddam):
        width = {"d_model": module.d_model, "n_layers": module.n_layers}
        flops = training_flops(**sizes, **width, ablation=module.ablation)
    return Forecaster(module, batch, lr, schedule.epochs, schedule.halve, flops)


def _module(config: Any, name: str, sizes: Sizes, place: Place) -> tuple[nn.Module, str]:
    """(module, the model whose settings it takes)."""
    if name in PLUGGED:
        backbone, split = PLUGGED[name]
        inner, _ = _module(config, backbone, sizes, place)
        p = config.model.plugin
        return PlugIn(inner, split, **_kernels(p)), backbone
    if name in ARMS:
        return _leddam(config, sizes, place, *ARMS[name]), "leddam"
    if name in ("dlinear", "dlinear-ld"):
        m = config.model.dlinear
        kind = m.ld_init if name == "dlinear" else m.learned_init
        return DLinear(**sizes, kernel_size=m.kernel_size, ld_init=kind), "dlinear"
    if name == "itransformer":
        return _itransformer(config, sizes, place), name
    make, fields = PLAIN[name]
    chosen = {field: config.model[name][field] for field in fields}
    if name in CALENDAR:
        chosen["n_marks"] = len(FEATURES) if config.model[name].calendar else 0
    return make(**sizes, **chosen), name


def _kernels(section: Any) -> dict[str, Any]:
    """What a section of the config says of a learnable decomposition."""
    names = ("kernel_size", "ld_init", "kernel_constraint", "more_kernels")
    return {name: section[name] for name in names}


def _leddam(config: Any, sizes: Sizes, place: Place, ablation: str, positions: bool) -> Leddam:
    m, row = config.model.leddam, place.row(config.model.published)
    return Leddam(
        **sizes,
        d_model=row.d_model[place.column] if m.d_model is None else m.d_model,
        n_layers=row.n_layers if m.n_layers is None else m.n_layers,
        pe_type=row.pe_type if m.pe_type is None else m.pe_type,
        dropout=row.dropout[place.column] if m.dropout is None else m.dropout,
        **_kernels(m),
        period=m.period,
        decompose_on=m.decompose_on,
        instance_norm=m.instance_norm,
        form=m.form,
        remat=m.remat,
        per_series=m.per_series,
        ablation=ablation,
        positions=positions,
    )


def _itransformer(config: Any, sizes: Sizes, place: Place) -> ITransformer:
    m = config.model.itransformer
    width = place.row(m.published)[place.column] if m.d_model is None else m.d_model
    return ITransformer(
        **sizes,
        d_model=width,
        d_ff=width,
        n_heads=m.n_heads,
        n_layers=m.n_layers,
        dropout=m.dropout,
    )
