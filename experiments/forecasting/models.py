"""From a config to forecasters: which module, how it is trained, and as which learning problem."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import choose, multiple_of, one_of
from rflib.core.errors import UserError
from rflib.data import windows
from rflib.methods.leddam.baselines import DLinear, ITransformer
from rflib.methods.leddam.data import ForecastData, train_batches
from rflib.methods.leddam.losses import LOSSES
from rflib.methods.leddam.model import Leddam
from rflib.methods.leddam.theory import training_flops
from rflib.nn import variables
from rflib.train.gradient import gradient_step
from rflib.train.task import Aux, Batch, Key, Step, Task, Variables

PyTree = Any
Sizes = dict[str, Any]
DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}
TITLES = {"leddam": "Leddam", "dlinear": "DLinear", "itransformer": "iTransformer"}


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


def forecasters(config: Any, n_series: int, data: str, pred_len: int) -> dict[str, Forecaster]:
    """The forecasters of `config.model.names` for a data set (by name) and a horizon."""
    build = {"leddam": _leddam, "dlinear": _dlinear, "itransformer": _itransformer}
    sizes = {"n_series": n_series, "seq_len": config.data.seq_len, "pred_len": pred_len}
    column = min(bisect_left(config.expect.horizons, pred_len), len(config.expect.horizons) - 1)
    for name in config.model.names:
        one_of("config.model.names", name, build)
    return {name: build[name](config, sizes, data, column) for name in config.model.names}


def _leddam(config: Any, sizes: Sizes, data: str, column: int) -> Forecaster:
    m, schedule = config.model.leddam, config.optim.leddam
    row = config.model.published[data if data in config.model.published else "other"]
    d_model = row.d_model[column] if m.d_model is None else m.d_model
    n_layers = row.n_layers if m.n_layers is None else m.n_layers
    module = Leddam(
        **sizes,
        d_model=d_model,
        n_layers=n_layers,
        pe_type=row.pe_type if m.pe_type is None else m.pe_type,
        dropout=row.dropout[column] if m.dropout is None else m.dropout,
        kernel_size=m.kernel_size,
        period=m.period,
        ld_init=m.ld_init,
        decompose_on=m.decompose_on,
        instance_norm=m.instance_norm,
        form=m.form,
        remat=m.remat,
    )
    return Forecaster(
        module,
        batch=row.batch if config.batch.leddam is None else config.batch.leddam,
        lr=row.lr if schedule.lr is None else schedule.lr,
        epochs=schedule.epochs,
        halve=schedule.halve,
        flops=training_flops(**sizes, d_model=d_model, n_layers=n_layers),
    )


def _dlinear(config: Any, sizes: Sizes, data: str, column: int) -> Forecaster:
    del data, column
    m, schedule = config.model.dlinear, config.optim.dlinear
    module = DLinear(**sizes, kernel_size=m.kernel_size, ld_init=m.ld_init)
    return Forecaster(
        module, config.batch.dlinear, schedule.lr, schedule.epochs, schedule.halve, None
    )


def _itransformer(config: Any, sizes: Sizes, data: str, column: int) -> Forecaster:
    m, schedule = config.model.itransformer, config.optim.itransformer
    width = m.d_model
    if width is None:
        width = m.published[data if data in m.published else "other"][column]
    module = ITransformer(
        **sizes,
        d_model=width,
        d_ff=width,
        n_heads=m.n_heads,
        n_layers=m.n_layers,
        dropout=m.dropout,
    )
    return Forecaster(
        module, config.batch.itransformer, schedule.lr, schedule.epochs, schedule.halve, None
    )


def task(
    module: nn.Module,
    *,
    loss: str,
    series: Float[Array, "length series"],
    batch: Callable[[int], Int[np.ndarray, " rows"]],
) -> Task:
    """Forecasting as a learning problem: data is the standardised series, a batch window starts."""
    error = choose("config.optim.loss", loss, LOSSES)
    size: Any = module

    def init(key: Key) -> Variables:
        return variables.init(module, key, (1, size.seq_len, size.n_series))

    def objective(values: Variables, batch: Batch, key: Key) -> tuple[Array, Aux]:
        x, y = windows(batch[0], batch[1], size.seq_len, size.pred_len)
        ahead, extra = variables.apply(module, values, x, train=True, key=key)
        changed = extra if "batch_stats" in extra else None
        return jnp.mean(error(ahead, y)), Aux(extra=changed)

    return Task(init, objective, batch, series)


def step(config: Any, forecaster: Forecaster, problem: Task, *, epoch: int) -> Step:
    """Adam on `problem`; with `halve` the rate is halved after every `epoch` steps."""
    rate: Any = forecaster.lr
    if forecaster.halve:
        rate = optax.exponential_decay(forecaster.lr, epoch, 0.5, staircase=True)
    optim = config.optim
    adam = optax.adam(rate, b1=optim.b1, b2=optim.b2, eps=optim.eps)
    dtype = choose("config.optim.compute_dtype", optim.compute_dtype, DTYPES)
    return gradient_step(problem, adam, compute_dtype=dtype)


def batches(
    data: ForecastData, batch: int, *, seed: int, shuffle: bool
) -> Callable[[int], Int[np.ndarray, " rows"]]:
    """step -> starts of this process's training windows; an incomplete last batch is left out."""
    if shuffle:
        return train_batches(data, batch, seed=seed)
    first = data.starts("train")
    if batch > len(first):
        raise UserError(f"batch={batch} is more than the {len(first)} training windows")
    share = multiple_of("batch", batch, "processes", jax.process_count()) // jax.process_count()
    offset = share * jax.process_index()

    def in_time_order(step: int) -> np.ndarray:
        start = step % (len(first) // batch) * batch + offset
        return first[start : start + share]

    return in_time_order


def abstract_view(module: nn.Module) -> PyTree:
    """Shapes of what `fit` keeps of the best model: the view of `gradient_step`."""
    size: Any = module
    shape = (1, size.seq_len, size.n_series)
    return jax.eval_shape(lambda key: variables.init(module, key, shape), jax.random.key(0)) | {
        "ema": None
    }


def forecast(
    module: nn.Module, view: PyTree, x: Float[Array, "batch past series"]
) -> Float[Array, "batch future series"]:
    """The trained model's forecast; `view` is that of `gradient_step`."""
    return variables.apply(module, {"params": view["params"], "extra": view["extra"]}, x)[0]


def measure(module: nn.Module) -> Callable[[PyTree, Any], Mapping[str, Float[Array, " batch"]]]:
    """(view, (series, starts)) -> the errors of each window, for `evaluation.over_batches`."""
    size: Any = module

    def errors(view: PyTree, batch: Batch) -> dict[str, Array]:
        x, y = windows(batch[0], batch[1], size.seq_len, size.pred_len)
        ahead = forecast(module, view, x)
        return {name: error(ahead, y) for name, error in LOSSES.items()}

    return errors
