"""Forecasting as a learning problem: loss, optimiser, batches, errors of a forecaster."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import Array
from jaxtyping import Float, Int

from experiments.forecasting.forecasters import Forecaster
from rflib.core.checks import choose, in_range, multiple_of
from rflib.core.errors import UserError
from rflib.data import windows
from rflib.methods.leddam.data import ForecastData, train_batches
from rflib.methods.leddam.decomposition import kernel_mask
from rflib.methods.leddam.losses import LOSSES
from rflib.nn import variables
from rflib.train.gradient import gradient_step
from rflib.train.task import Aux, Batch, Key, Step, Task, Variables

PyTree = Any
DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}


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
