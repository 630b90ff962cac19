"""Leddam (Yu et al., ICML 2024) against DLinear, iTransformer and naive forecasts.

    python -m experiments.leddam --config configs/leddam.py:tiny
    RFLIB_DATA=... python -m experiments.leddam
    python -m experiments.leddam --config.data.path=my.csv --config.data.horizons="(24,)"

tiny: generated series; proves that everything runs, in 15 s on 2 CPU cores.
default: ETTh1 and ETTh2 at horizon 96 with the authors' hyper-parameters in float32, three seeds,
    early stopping after 3 epochs without a better validation error: Leddam, three arms of its
    ablation, two competitors; 15 minutes on 2 busy CPU cores. Two cells of the paper's main
    table, MSE/MAE .377/.394 and .292/.343, come out as .376/.396 and .291/.340.
paper: the main table, eight data sets by four horizons with the authors' loader and patience; made
    for an accelerator. Data sets that are not found are left out.
ett_full: the main table's cells of ETTh1 and ETTh2 with every ablation; hours on a CPU.
plugin: five forecasters alone, behind the learnable decomposition and behind the frozen moving
    average, on three data sets and two horizons. Widths, Adam's rate of 1e-3, batches of 128 and
    12 epochs are ours: the paper does not state its own, and these fit a CPU. Hours.
plugin_small: LSTM and LightTS of it on ETTh1 and ETTh2 at horizon 96.
decomp_quality: kernels trained for horizon 720, applied to raw windows: do they follow the trend
    better than a moving average, and than they did before training?
attn_order: delayed copies against points and patches as tokens, without and with positions.
"""

from ml_collections import ConfigDict, config_dict

VARIANTS = {
    "tiny": "generated series, a small Leddam and DLinear, 3 epochs; 15 s on 2 cores",
    "default": "ETTh1 and ETTh2, horizon 96, seven models, three seeds; 15 min on 2 busy cores",
    "paper": "eight data sets, four horizons, one seed; hours on an accelerator",
    "ett_full": "ETTh1 and ETTh2, four horizons, all ablations, three seeds; a day on 2 cores",
    "plugin": "five forecasters with and without LD, six cells, three seeds; hours on 2 cores",
    "plugin_small": "LSTM and LightTS of plugin on two cells; 15 min on 2 cores",
    "decomp_quality": "kernels trained for horizon 720 on raw windows, three seeds; 1 h on 2 cores",
    "attn_order": "ETTh2, horizon 96, six kinds of tokens, three seeds; 1 h on 2 cores",
}
NAMES = ("ETTh1", "ETTh2", "ETTm1", "ETTm2", "Weather", "Electricity", "Solar", "Traffic")
ARMS = ("leddam-mov", "leddam-no_auto", "leddam-no_channel")
DEFAULT = ("leddam", *ARMS, "dlinear", "dlinear-ld", "itransformer")


def get_config(variant: str = "default") -> ConfigDict:
    """The config of one of VARIANTS."""
    c = ConfigDict()
    c.seed = 2021  # root of the first run's randomness, >= 0; the authors' seed
    c.more_seeds = (1, 2)  # further runs of every model, one after the other
    c.steps = 0  # most updates of a model; 0: as many as its epochs take

    c.batch = ConfigDict()
    c.batch.leddam = config_dict.placeholder(int)  # windows a step; None: model.published
    c.batch.dlinear = 32  # windows a step
    c.batch.itransformer = 32  # windows a step
    c.batch.nlinear = 32  # windows a step
    c.batch.patchtst = 32  # windows a step
    c.batch.lightts = 32  # windows a step
    c.batch.lstm = 128  # windows a step
    c.batch.scinet = 32  # windows a step
    c.batch.transformer = 32  # windows a step
    c.batch.informer = 32  # windows a step

    c.data = ConfigDict()
    c.data.names = ("ETTh1", "ETTh2")  # benchmarks by name, or "synthetic"
    c.data.path = ""  # a CSV file of your own, or the directory of the benchmarks; "": searched
    c.data.missing = "generate"  # generate | skip | fail: what to do without the file
    c.data.gaps = "error"  # | mask: missing values are filled as past and not counted as future
    c.data.seq_len = 96  # rows of past T
    c.data.horizons = (96,)  # rows of future S, one model each
    c.data.target = ""  # column moved to the end; "": OT if there is one, else the last
    c.data.shuffle = True  # training windows in a new order every epoch; False: in time order
    c.data.val_drop_last = False  # True: validation shuffled, its last batch dropped (official)
    c.data.rows = 3000  # of generated series
    c.data.channels = 5  # of generated series
    c.data.seed = 0  # of generated series, >= 0

    c.model = ConfigDict()
    c.model.names = DEFAULT  # what is trained; experiments/forecasting/forecasters.py lists all
    c.model.quantiles = ()  # levels in (0, 1) with .5, as (.1, .5, .9); (): a point forecast only
    c.model.leddam = _leddam()
    c.model.published = ConfigDict({name: _published(name) for name in (*NAMES, "other")})
    c.model.dlinear = ConfigDict()
    c.model.dlinear.kernel_size = 25  # taps of the moving average, odd
    c.model.dlinear.ld_init = "mov_frozen"  # | softmax_gauss | gauss | uniform: those are trained
    c.model.dlinear.learned_init = "softmax_gauss"  # the same, of dlinear-ld
    c.model.itransformer = ConfigDict()
    c.model.itransformer.d_model = config_dict.placeholder(int)  # None: published, by horizon
    c.model.itransformer.n_heads = 8  # divides d_model
    c.model.itransformer.n_layers = 2  # encoder layers
    c.model.itransformer.dropout = 0.1  # [0, 1)
    c.model.itransformer.published = ConfigDict()
    c.model.itransformer.published.ETTh1 = (256, 256, 512, 512)  # d_model = d_ff by horizon
    c.model.itransformer.published.ETTh2 = (128, 128, 128, 128)  # d_model = d_ff by horizon
    c.model.itransformer.published.other = (256, 256, 256, 256)  # ours, for all other data
    c.model.patchtst = _patchtst()
    c.model.lightts = ConfigDict()
    c.model.lightts.d_model = 512  # multiple of 16; the Time-Series Library's
    c.model.lightts.chunk_size = 24  # time steps
    c.model.lstm = ConfigDict()
    c.model.lstm.hidden = 128  # width of the state; ours, the paper's LSTM is not described
    c.model.lstm.n_layers = 1  # layers
    c.model.lstm.dropout = 0.0  # between layers, [0, 1)
    c.model.scinet = ConfigDict()
    c.model.scinet.kernel_size = 5  # taps of each convolution
    c.model.scinet.n_levels = 4  # depth of the tree, seq_len >= 2^(n_levels - 1)
    c.model.scinet.dropout = 0.0  # [0, 1)
    c.model.transformer = _transformer()
    c.model.informer = _transformer()
    c.model.informer.factor = 5  # factor ln L queries get attention of their own, >= 1
    c.model.informer.distil = True  # halve the tokens between encoder layers
    c.model.plugin = ConfigDict()
    c.model.plugin.kernel_size = 25  # taps of the kernel in front of a forecaster, odd
    c.model.plugin.ld_init = "softmax_gauss"  # | gauss | uniform; of +ld
    c.model.plugin.kernel_constraint = "none"  # | simplex | symmetric; of +ld
    c.model.plugin.more_kernels = ()  # odd sizes of further kernels, mixed by a trained gate

    c.optim = ConfigDict()
    c.optim.loss = "mse"  # mse | mae; of training and validation; pinball with model.quantiles
    c.optim.b1 = 0.9  # Adam, [0, 1)
    c.optim.b2 = 0.999  # Adam, [0, 1)
    c.optim.eps = 1e-8  # Adam, > 0
    c.optim.patience = 3  # epochs without a better validation error before the end; official 6
    c.optim.compute_dtype = "float32"  # float32 | bfloat16 (master weights stay float32)
    c.optim.scan = 22  # most updates a compiled call; the largest divisor of all intervals is used
    c.optim.ld_lr_mult = 1.0  # >= 0; the learnable kernel's rate as a multiple of the others'
    c.optim.leddam = _schedule(None, epochs=100, halve=False)
    c.optim.dlinear = _schedule(5e-3, epochs=10, halve=True)
    c.optim.itransformer = _schedule(1e-4, epochs=10, halve=True)
    c.optim.nlinear = _schedule(5e-3, epochs=10, halve=True)  # ours, as DLinear's
    c.optim.lstm = _schedule(1e-3, epochs=12, halve=False)  # ours
    for name in ("patchtst", "lightts", "scinet", "transformer", "informer"):
        c.optim[name] = _schedule(1e-4, epochs=10, halve=True)  # the Time-Series Library's

    c.mesh = ConfigDict()
    c.mesh.data = -1  # devices over which the windows of a batch are spread; -1: all that are left
    c.mesh.model = 1  # devices over which weights are cut with rules = "tensor"
    c.mesh.rules = "replicate"  # replicate | fsdp | tensor

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 0  # steps; 0: an epoch
    c.checkpoint.keep = 2  # newest ones

    c.log = ConfigDict()
    c.log.every = 0  # steps; 0: an epoch

    c.evals = ConfigDict()
    c.evals.every = 0  # steps between validations; 0: an epoch
    c.evals.batch = 256  # windows a call; does not change the result

    c.expect = ConfigDict()
    c.expect.horizons = (96, 192, 336, 720)  # rows; the columns of the tables by horizon
    c.expect.margin = 5e-4  # MSE, >= 0; a component that gives less gives nothing (ours)
    c.expect.harmless = 5e-3  # MSE, >= 0; leaving positions out may cost as much (ours)
    c.expect.split_horizon = 720  # rows; kernels trained for this horizon decide C1
    c.expect.leddam = ConfigDict({name: _expected(name) for name in NAMES})
    return _VARIANTS[variant](c)


def _leddam() -> ConfigDict:
    m = ConfigDict()
    m.d_model = config_dict.placeholder(int)  # width D; None: model.published
    m.n_layers = config_dict.placeholder(int)  # blocks a branch; None: model.published
    m.pe_type = config_dict.placeholder(str)  # table of channel positions; None: model.published
    m.dropout = config_dict.placeholder(float)  # [0, 1); None: model.published
    m.kernel_size = 25  # taps K of the learnable decomposition, odd
    m.period = 64  # delay P of the auto-regressive tokens, coordinates of the embedding
    m.ld_init = "softmax_gauss"  # | gauss | uniform | mov_frozen (the moving average)
    m.decompose_on = "embedding"  # | series
    m.instance_norm = True  # normalise each window
    m.form = "efficient"  # | literal: the same function, slower
    m.remat = False  # recompute blocks in the backward pass
    m.kernel_constraint = "none"  # | simplex | symmetric: taps >= 0 of sum 1; and mirrored
    m.more_kernels = ()  # odd sizes of further kernels, mixed with the first by a trained gate
    m.per_series = True  # False: no positions of series, LayerNorm; no parameter depends on N
    return m


def _patchtst() -> ConfigDict:
    """The Time-Series Library's script for ETTh1 at horizon 96."""
    m = ConfigDict()
    m.d_model = 512  # width
    m.d_ff = 2048  # width of the feed-forward
    m.n_heads = 2  # divides d_model
    m.n_layers = 1  # encoder layers
    m.patch_len = 16  # time steps
    m.stride = 8  # time steps
    m.dropout = 0.1  # [0, 1)
    return m


def _transformer() -> ConfigDict:
    """The Time-Series Library's, which has calendar features."""
    m = ConfigDict()
    m.d_model = 512  # width
    m.d_ff = 2048  # width of the feed-forward
    m.n_heads = 8  # divides d_model
    m.n_layers = 2  # encoder layers
    m.n_decoder_layers = 1  # decoder layers
    m.dropout = 0.1  # [0, 1)
    m.label_len = 48  # known values that the decoder starts from
    m.calendar = False  # hour, weekday, day of month and year beside the values; takes dates
    return m


def _published(name: str) -> ConfigDict:
    """The authors' script of a data set; width and dropout for the horizons 96, 192, 336, 720."""
    lr, n_layers, pe_type, d_model, dropout = {
        "ETTh1": (1e-4, 1, "sincos", (256, 512, 512, 512), (0.0, 0.0, 0.0, 0.5)),
        "ETTh2": (1e-4, 1, "no", (256,) * 4, (0.0,) * 4),
        "ETTm1": (1e-4, 1, "sincos", (512, 256, 256, 256), (0.0, 0.5, 0.5, 0.5)),
        "ETTm2": (1e-4, 1, "sincos", (512, 256, 512, 512), (0.0,) * 4),
        "Weather": (5e-4, 1, "sincos", (256,) * 4, (0.0, 0.5, 0.5, 0.0)),
        "Electricity": (5e-4, 3, "no", (256,) * 4, (0.2, 0.2, 0.0, 0.2)),
        "Solar": (5e-4, 3, "no", (512,) * 4, (0.2, 0.5, 0.5, 0.2)),
        "Traffic": (1e-3, 3, "no", (256,) * 4, (0.5,) * 4),
        "other": (1e-4, 1, "sincos", (256,) * 4, (0.0,) * 4),  # ours: ETTh1's at 96
    }[name]
    p = ConfigDict()
    p.lr = lr  # Adam, constant, > 0
    p.batch = 32 if name == "Traffic" else 128  # windows a step
    p.n_layers = n_layers  # blocks a branch
    p.pe_type = pe_type  # table of channel positions
    p.d_model = d_model  # width D by horizon
    p.dropout = dropout  # [0, 1) by horizon
    return p


def _schedule(lr: float | None, *, epochs: int, halve: bool) -> ConfigDict:
    s = ConfigDict()
    s.lr = config_dict.placeholder(float) if lr is None else lr  # > 0; None: model.published
    s.epochs = epochs  # most passes over the training windows
    s.halve = halve  # the rate after every epoch
    return s


def _expected(name: str) -> ConfigDict:
    """The authors' training logs, for the horizons 96, 192, 336, 720, on standardised series."""
    mse, mae = {
        "ETTh1": ((0.377, 0.424, 0.459, 0.463), (0.394, 0.422, 0.442, 0.460)),
        "ETTh2": ((0.292, 0.367, 0.412, 0.419), (0.343, 0.389, 0.424, 0.438)),
        "ETTm1": ((0.319, 0.369, 0.394, 0.460), (0.359, 0.383, 0.402, 0.442)),
        "ETTm2": ((0.176, 0.243, 0.303, 0.400), (0.257, 0.303, 0.341, 0.398)),
        "Weather": ((0.156, 0.207, 0.262, 0.343), (0.202, 0.250, 0.291, 0.343)),
        "Electricity": ((0.141, 0.159, 0.173, 0.201), (0.235, 0.252, 0.268, 0.295)),
        "Solar": ((0.197, 0.231, 0.241, 0.250), (0.241, 0.264, 0.268, 0.281)),
        "Traffic": ((0.426, 0.458, 0.486, 0.498), (0.276, 0.289, 0.297, 0.313)),
    }[name]
    e = ConfigDict()
    e.mse = mse  # by horizon
    e.mae = mae  # by horizon
    e.tolerance = {"ETTh1": 0.006, "ETTh2": 0.008}.get(name, 0.01)  # of either, to hold
    return e


def _default(c: ConfigDict) -> ConfigDict:
    return c


def _tiny(c: ConfigDict) -> ConfigDict:
    c.more_seeds = ()
    c.data.names = ("synthetic",)
    c.model.names = ("leddam", "dlinear")
    c.model.leddam.d_model = 128
    c.model.leddam.period = 32
    c.optim.leddam.lr = 1e-3
    for model in ("leddam", "dlinear", "itransformer"):
        c.optim[model].epochs = 3
    return c


def _paper(c: ConfigDict) -> ConfigDict:
    c.more_seeds = ()
    c.data.names = NAMES
    c.data.missing = "skip"
    c.data.horizons = (96, 192, 336, 720)
    c.data.val_drop_last = True
    c.model.names = ("leddam", "dlinear", "itransformer")
    c.optim.patience = 6
    return c


def _ett_full(c: ConfigDict) -> ConfigDict:
    c.data.horizons = (96, 192, 336, 720)
    arms = ("no_auto", "no_channel", "no_res", "no_ld", "mov", "attn_point", "attn_patch")
    more = tuple(f"leddam-{arm}" for arm in (*arms, "no_revin", "no_pe"))
    c.model.names = ("leddam", *more, "dlinear", "dlinear-ld", "itransformer")
    for name in ("ETTh1", "ETTh2"):
        c.expect.leddam[name].tolerance = 0.01
    return c


def _plugin(c: ConfigDict) -> ConfigDict:
    models = ("lstm", "lightts", "scinet", "transformer", "informer")
    c.data.names = ("ETTh1", "ETTh2", "exchange_rate")
    c.data.horizons = (96, 192)
    c.model.names = tuple(f"{name}+{split}" for name in models for split in ("raw", "ld", "mov"))
    c.model.lightts.d_model = 128
    c.model.lstm.hidden = 64
    for name in ("transformer", "informer"):
        c.model[name].d_model = 32
        c.model[name].d_ff = 64
        c.model[name].n_heads = 2
        c.model[name].n_layers = 1
        c.model[name].dropout = 0.0
    for name in models:
        c.batch[name] = 128
        c.optim[name] = _schedule(1e-3, epochs=12, halve=False)
    return c


def _plugin_small(c: ConfigDict) -> ConfigDict:
    c = _plugin(c)
    c.data.names = ("ETTh1", "ETTh2")
    c.data.horizons = (96,)
    c.model.names = c.model.names[:6]
    return c


def _decomp_quality(c: ConfigDict) -> ConfigDict:
    c.data.horizons = (720,)
    c.model.names = ("leddam", "dlinear-ld")
    return c


def _attn_order(c: ConfigDict) -> ConfigDict:
    c.data.names = ("ETTh2",)
    kinds = ("leddam", "leddam-attn_point", "leddam-attn_patch")
    c.model.names = (*kinds, *(f"{kind}-positions" for kind in kinds))
    return c


_VARIANTS = {
    "tiny": _tiny,
    "default": _default,
    "paper": _paper,
    "ett_full": _ett_full,
    "plugin": _plugin,
    "plugin_small": _plugin_small,
    "decomp_quality": _decomp_quality,
    "attn_order": _attn_order,
}
