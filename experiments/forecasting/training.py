"""One cell of the results: every forecaster trained on one data set and horizon, for every seed."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from experiments.forecasting import models
from experiments.forecasting.forecasters import Forecaster, forecasters
from rflib.core import trees
from rflib.core.checks import choose, positive_int
from rflib.core.errors import NotFinite
from rflib.methods.leddam.data import ForecastData, valid_starts
from rflib.methods.leddam.decomposition import LearnableDecomposition
from rflib.methods.leddam.naive import naive_errors
from rflib.run.seeds import seeds
from rflib.train import mesh as meshes
from rflib.train.evaluation import over_batches
from rflib.train.loop import fit
from rflib.train.task import Checkpoint, EarlyStop, Eval, Key, Metrics, Result

PyTree = Any
# Weights [out, in] on the mesh axis "model": maps that widen by their outputs, the next by inputs.
RULES: dict[str, meshes.Rules] = {
    "replicate": (),
    "fsdp": ((".", meshes.fsdp()),),
    "tensor": (
        (r"(expand|query|key|value)/weight", P("model", None)),
        (r"(contract|output)/weight", P(None, "model")),
    ),
}


class Outcome(NamedTuple):
    """One trained model, tested at the view of its best validation error.

    mse, mae: on the test windows, standardised. valid: the best validation error. best_step: its
    step. steps: updates done. cut: whether config.steps ended it before its epochs or patience did.
    crps: on the test windows, of a model with quantiles.
    """

    seed: int
    mse: float
    mae: float
    valid: float
    best_step: int
    steps: int
    cut: bool
    crps: float | None = None


class Cell(NamedTuple):
    """All results for one data set and horizon.

    outcomes: model -> one a seed. naive: forecast -> {"mse", "mae"}. views: model -> the best view
    of the first seed. parameters: model -> trained numbers. kernels: model -> (kernel [K], bias)
    of its decomposition at the best view, one a seed, for the models that train one.
    """

    name: str
    data: ForecastData
    forecasters: Mapping[str, Forecaster]
    outcomes: Mapping[str, list[Outcome]]
    naive: Mapping[str, Mapping[str, float]]
    views: Mapping[str, PyTree]
    parameters: Mapping[str, int]
    kernels: Mapping[str, list[tuple[np.ndarray, float]]]

    def mean(self, model: str, metric: str) -> float:
        """Over the seeds."""
        return float(np.mean([getattr(outcome, metric) for outcome in self.outcomes[model]]))

    def spread(self, model: str, metric: str) -> float:
        """Standard deviation over the seeds (n - 1); 0 with one seed."""
        values = [getattr(outcome, metric) for outcome in self.outcomes[model]]
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def phase_name(data: str, horizon: int, model: str, seed: int) -> str:
    """The name of a training run inside the run, and of its directory below phases/."""
    return f"{data}-{horizon}-{model}-{seed}"


def train_cell(config: Any, run: Any, data: ForecastData, mesh: Mesh) -> Cell:
    """Trains what `config.model.names` says on `data`, phase after phase, each resumable."""
    plain = models.on_device(data)
    found = forecasters(config, len(data.columns), data.name, data.pred_len)
    inputs = {name: models.with_calendar(f.module, plain, data) for name, f in found.items()}
    naive = naive_errors(
        jnp.asarray(data.series),
        data.starts("test"),
        seq_len=data.seq_len,
        pred_len=data.pred_len,
        season=data.season,
        observed=data.observed,
    )
    outcomes: dict[str, list[Outcome]] = {}
    views: dict[str, PyTree] = {}
    kernels: dict[str, list[tuple[np.ndarray, float]]] = {}
    for model, forecaster in found.items():
        series = inputs[model]
        evals = _evals(config, data, forecaster, series, mesh)
        outcomes[model] = []
        for seed in seeds(config):
            name = phase_name(data.name, data.pred_len, model, seed)
            result = _fit(config, run, data, forecaster, series, mesh, evals, name, seed)
            if result.best is None:
                raise NotFinite(
                    f"{name}: the validation error was never a finite number in {result.step} "
                    "steps, so there is no model to test. Is the learning rate (config.optim) too "
                    "high, or do the validation rows lie far outside of the training rows?"
                )
            outcome = _outcome(config, forecaster, data, seed, result)
            outcomes[model].append(outcome)
            run.note(
                f"{name}: test MSE {outcome.mse:.4f}, MAE {outcome.mae:.4f}, at the best "
                f"validation, step {outcome.best_step} of {outcome.steps}"
            )
            view = meshes.host_value(result.best)
            views.setdefault(model, view)
            inside = models.core(forecaster.module, view)
            if "decomposition" in inside[1]["params"]:
                kernels.setdefault(model, []).append(learned_kernel(*inside))
    return Cell(
        name=f"{data.name}-{data.pred_len}",
        data=data,
        forecasters=found,
        outcomes=outcomes,
        naive=jax.tree.map(float, jax.device_get(naive)),
        views=views,
        parameters={model: trees.size(views[model]["params"]) for model in found},
        kernels=kernels,
    )


def learned_kernel(module: Any, view: PyTree) -> tuple[np.ndarray, float]:
    """(kernel [K], bias) that a point forecaster's decomposition applies, trained or frozen."""
    params = view["params"].get("decomposition")
    if params is None:
        frozen = view["extra"]["frozen"]["decomposition"]
        return np.asarray(frozen["kernel"]), float(frozen["bias"])
    return _applied(_decomposition(module), params)


def first_kernel(module: Any) -> np.ndarray:
    """The kernel that a forecaster's decomposition applies before training, if it is trained."""
    split = _decomposition(module)
    params = split.init(jax.random.key(0), jnp.zeros((1, 1)))["params"]
    return _applied(split, params)[0]


def _decomposition(module: Any) -> LearnableDecomposition:
    return LearnableDecomposition(
        module.kernel_size,
        module.ld_init,
        constraint=getattr(module, "kernel_constraint", "none"),
        more_kernels=getattr(module, "more_kernels", ()),
    )


def _applied(split: LearnableDecomposition, params: PyTree) -> tuple[np.ndarray, float]:
    found = {"params": jax.tree.map(jnp.asarray, params)}
    kernel, bias = nn.apply(lambda bound: (bound.kernel, bound.bias), split)(found)
    return np.asarray(kernel), float(bias)


def _epoch(data: ForecastData, forecaster: Forecaster) -> int:
    """Steps of an epoch."""
    return max(1, len(data.starts("train")) // positive_int("batch", forecaster.batch))


def _limit(config: Any, epoch: int, forecaster: Forecaster) -> int:
    """Most updates of a model."""
    steps = epoch * positive_int("epochs", forecaster.epochs)
    return min(steps, config.steps) if config.steps else steps


def _fit(
    config: Any,
    run: Any,
    data: ForecastData,
    forecaster: Forecaster,
    series: models.Data,
    mesh: Mesh,
    evals: Mapping[str, Eval],
    name: str,
    seed: int,
) -> Result:
    epoch = _epoch(data, forecaster)
    steps = _limit(config, epoch, forecaster)
    log, checkpoint = config.log.every or epoch, config.checkpoint.every or epoch
    intervals = (steps, log, checkpoint, evals["valid"].every)
    batch = models.batches(data, forecaster.batch, seed=seed, shuffle=config.data.shuffle)
    problem = models.task(
        forecaster.module,
        loss=models.loss_name(config),
        series=series,
        batch=batch,
        density=data.density("train"),
    )
    return fit(
        models.step(config, forecaster, problem, epoch=epoch),
        batch,
        run,
        name=name,
        data=series,
        steps=steps,
        seed=seed,
        mesh=mesh,
        rules=choose("config.mesh.rules", config.mesh.rules, RULES),
        scan=_largest_divisor(math.gcd(*intervals), config.optim.scan),
        evals=evals,
        log_every=log,
        checkpoint=Checkpoint(every=checkpoint, keep=config.checkpoint.keep),
        stop=EarlyStop("valid", config.optim.patience),
        flops=forecaster.flops,
    )


def _largest_divisor(number: int, most: int) -> int:
    positive_int("config.optim.scan", most)
    return max(each for each in range(1, min(number, most) + 1) if number % each == 0)


def _evals(
    config: Any, data: ForecastData, forecaster: Forecaster, series: models.Data, mesh: Mesh
) -> dict[str, Eval]:
    """Validation every epoch, which keeps the best view, and the test of that view at the end."""
    errors = models.measure(forecaster.module)
    kept = valid_starts(data, forecaster.batch, drop_last=config.data.val_drop_last).copy()

    def mean(starts: np.ndarray) -> Callable[[PyTree, Key], Metrics]:
        means = over_batches(errors, starts, batch=config.evals.batch, data=series, mesh=mesh)
        return lambda view, key: models.of_observed(means(view, key))

    whole = mean(kept)

    def official(view: PyTree, key: Key) -> Metrics:
        seed = int(jax.random.bits(key))
        kept[:] = valid_starts(data, forecaster.batch, drop_last=True, seed=seed)
        return whole(view, key)

    every = config.evals.every or _epoch(data, forecaster)
    valid = official if config.data.val_drop_last else whole
    return {
        "valid": Eval(valid, every=every, best="min", metric=models.loss_name(config)),
        "test": Eval(mean(data.starts("test"))),
    }


def _outcome(
    config: Any, forecaster: Forecaster, data: ForecastData, seed: int, result: Result
) -> Outcome:
    allowed = _epoch(data, forecaster) * forecaster.epochs
    return Outcome(
        seed=seed,
        mse=result.metrics["test/mse"],
        mae=result.metrics["test/mae"],
        valid=result.best_value,
        best_step=result.best_step,
        steps=result.step,
        cut=result.reason == "steps" and bool(config.steps) and result.step < allowed,
        crps=result.metrics.get("test/crps"),
    )
