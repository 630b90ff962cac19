"""Forecasting as a learning problem: loss, optimiser, batches, errors of a forecaster."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import Array
from jaxtyping import Float, Int

from experiments.forecasting.forecasters import Forecaster
from rflib.core.checks import choose, in_range, multiple_of, one_of
from rflib.core.errors import UserError
from rflib.data import windows
from rflib.methods.leddam.data import ForecastData, train_batches
from rflib.methods.leddam.decomposition import kernel_mask
from rflib.methods.leddam.gaps import Gapped, gapped_windows, window_means
from rflib.methods.leddam.intervals import crps_quantiles, pinball
from rflib.methods.leddam.losses import LOSSES
from rflib.methods.leddam.quantile_head import QuantileHead
from rflib.methods.leddam.time_features import time_features
from rflib.nn import variables
from rflib.train.gradient import gradient_step
from rflib.train.task import Aux, Batch, Key, Step, Task, Variables

PyTree = Any
DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}


def loss_name(config: Any) -> str:
    """What training and validation make small: quantiles have a loss of their own."""
    return "pinball" if config.model.quantiles else config.optim.loss


class Dated(NamedTuple):
    """A series with a calendar: marks [L, F] are `time_features` of its rows.

    Stands wherever a series stands for a forecaster that takes marks.
    """

    series: Array | Gapped
    marks: Array


Data = Array | Gapped | Dated


def on_device(data: ForecastData) -> Array | Gapped:
    """The standardised series, with its gaps if it has some."""
    values = jnp.asarray(data.series)
    return values if data.observed is None else Gapped(values, jnp.asarray(data.observed))


def with_calendar(module: Any, series: Array | Gapped, data: ForecastData) -> Data:
    """What `module` is trained on: `series`, and its calendar if the module takes marks."""
    marks = calendar(module, data.dates, data.origin)
    return series if marks is None else Dated(series, marks)


def calendar(
    module: Any, dates: np.ndarray | None, source: str
) -> Float[Array, "*lead features"] | None:
    """The marks of `dates` if the module takes some, else None; UserError without dates."""
    if not getattr(module, "n_marks", 0):
        return None
    if dates is None:
        raise UserError(f"{source} has no dates, which calendar=True takes: add a column of dates")
    return jnp.asarray(time_features(dates))


def marked(
    marks: Float[Array, "length features"] | None, starts: Array, past: int, future: int
) -> Array | None:
    """The marks [B, T + S, F] of windows; None if there are none."""
    if marks is None:
        return None
    return jnp.concatenate(windows(marks, starts, past, future), 1)


def task(
    module: nn.Module,
    *,
    loss: str,
    series: Data,
    batch: Callable[[int], Int[np.ndarray, " rows"]],
    density: float = 1.0,
) -> Task:
    """Forecasting as a learning problem: data is the standardised series, a batch window starts.

    density: the share of the training windows' targets that was observed. Not one batch's: so the
    loss stays a mean over rows, and the mean over an epoch is that over all observed targets.
    """
    one_of("config.optim.loss", loss, ("pinball",) if isinstance(module, QuantileHead) else LOSSES)
    size: Any = module

    def init(key: Key) -> Variables:
        return variables.init(module, key, (1, size.seq_len, size.n_series))

    def objective(values: Variables, batch: Batch, key: Key) -> tuple[Array, Aux]:
        x, marks, y, observed = _windows(module, *batch)
        ahead, extra = variables.apply(module, values, x, train=True, key=key, **_named(marks))
        changed = extra if "batch_stats" in extra else None
        error = _errors(module, ahead, y, observed, density)[loss]
        return jnp.mean(error), Aux(extra=changed)

    return Task(init, objective, batch, series)


def step(config: Any, forecaster: Forecaster, problem: Task, *, epoch: int) -> Step:
    """Adam on `problem`; with `halve` the rate is halved after every `epoch` steps.

    `config.optim.ld_lr_mult` multiplies the rate of the learnable decomposition's parameters.
    """
    rate: Any = forecaster.lr
    if forecaster.halve:
        rate = optax.exponential_decay(forecaster.lr, epoch, 0.5, staircase=True)
    optim = config.optim
    adam = optax.adam(rate, b1=optim.b1, b2=optim.b2, eps=optim.eps)
    factor = in_range("config.optim.ld_lr_mult", optim.ld_lr_mult, 0)
    if factor != 1:
        adam = optax.chain(adam, optax.masked(optax.scale(factor), kernel_mask))
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
    module: nn.Module,
    view: PyTree,
    x: Float[Array, "batch past series"],
    marks: Float[Array, "batch steps features"] | None = None,
) -> Float[Array, "batch future series"]:
    """The trained model's forecast, the median of quantiles; `view` is that of `gradient_step`.

    marks: `time_features` of past and future, for a module that takes them.
    """
    ahead = _output(module, view, x, marks)
    return ahead[..., module.centre] if isinstance(module, QuantileHead) else ahead


def quantiles(
    module: nn.Module,
    view: PyTree,
    x: Float[Array, "batch past series"],
    marks: Float[Array, "batch steps features"] | None = None,
) -> Float[Array, "batch future series levels"] | None:
    """The trained model's quantiles; None if it forecasts points only."""
    return _output(module, view, x, marks) if isinstance(module, QuantileHead) else None


def _output(module: nn.Module, view: PyTree, x: Array, marks: Array | None) -> Array:
    values = {"params": view["params"], "extra": view["extra"]}
    return variables.apply(module, values, x, **_named(marks))[0]


def _windows(
    module: Any, data: Data, starts: Array
) -> tuple[Array, Array | None, Array, Array | None]:
    """(x, marks, y, observed) of the windows at `starts`."""
    past, future = module.seq_len, module.pred_len
    dated = isinstance(data, Dated)
    marks = marked(data.marks, starts, past, future) if dated else None
    x, y, observed = gapped_windows(data.series if dated else data, starts, past, future)
    return x, marks, y, observed


def _named(marks: Array | None) -> dict[str, Any]:
    """Only where there are some: most modules know no marks."""
    return {} if marks is None else {"marks": marks}


def core(module: nn.Module, view: PyTree) -> tuple[nn.Module, PyTree]:
    """The point forecaster inside and its part of the view; both as they are without quantiles."""
    if not isinstance(module, QuantileHead):
        return module, view
    inside = {
        "params": view["params"]["forecaster"],
        "extra": {name: each["forecaster"] for name, each in view["extra"].items()},
        "ema": None,
    }
    return module.forecaster, inside


def _errors(
    module: nn.Module, ahead: Array, y: Array, observed: Array | None, density: float
) -> dict[str, Float[Array, " batch"]]:
    """The errors of each window; with quantiles the point forecast is their median.

    pinball: mean over the levels. crps: see `crps_quantiles`. coverage: share between the lowest
    and the highest quantile, to be compared with the distance of their levels.
    """
    if not isinstance(module, QuantileHead):
        return {name: error(ahead, y, observed, density) for name, error in LOSSES.items()}
    found = {
        "pinball": jnp.mean(pinball(ahead, y, module.levels), -1),
        "crps": crps_quantiles(ahead, y, module.levels),
        "coverage": ((ahead[..., 0] <= y) & (y <= ahead[..., -1])).astype(y.dtype),
    }
    means = {name: window_means(each, observed, density) for name, each in found.items()}
    median = ahead[..., module.centre]
    return {name: e(median, y, observed, density) for name, e in LOSSES.items()} | means


def measure(module: nn.Module) -> Callable[[PyTree, Any], Mapping[str, Float[Array, " batch"]]]:
    """(view, (series, starts)) -> the errors of each window, for `evaluation.over_batches`.

    With gaps also "observed", the share of its targets that was; see `of_observed`.
    """

    def errors(view: PyTree, batch: Batch) -> dict[str, Array]:
        x, marks, y, observed = _windows(module, *batch)
        found = _errors(module, _output(module, view, x, marks), y, observed, 1.0)
        if observed is not None:
            found["observed"] = jnp.mean(observed.astype(y.dtype), (1, 2))
        return found

    return errors


def of_observed(means: Mapping[str, float]) -> dict[str, float]:
    """Means over windows of `measure` -> means over their observed targets: Σ w e / Σ w."""
    share = means.get("observed", 1.0)
    if not share:
        raise UserError("not one target of the windows was observed")
    return {name: mean / share for name, mean in means.items() if name != "observed"}
