"""Study `dynamics`: trained networks against the solution of the limit, from their own start."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.jacobian_regularisation import data as rows
from experiments.jacobian_regularisation.training import network, recorded_steps, train
from rflib.core import checks
from rflib.methods.jacobian_ntk.data import Labelled, Split
from rflib.methods.jacobian_ntk.dynamics import (
    decompose,
    kernel_regression,
    make_targets,
    predict,
)
from rflib.methods.jacobian_ntk.empirical import empirical_jntk
from rflib.methods.jacobian_ntk.kernels import flatten, gram
from rflib.methods.jacobian_ntk.network import Mlp, Params, values


class Width(NamedTuple):
    """Networks of one width and what the limit says of them; [T, R, rows, 1+d] each.

    linear: the same from each network's own kernel at its start, or None. agree: share of test rows
    on which f of network and limit have one sign, at the last step [R].
    """

    width: int
    train: np.ndarray
    test: np.ndarray
    limit_train: np.ndarray
    limit_test: np.ndarray
    linear_train: np.ndarray | None
    linear_test: np.ndarray | None

    @property
    def agree(self) -> np.ndarray:
        same = np.sign(self.test[-1, :, :, 0]) == np.sign(self.limit_test[-1, :, :, 0])
        return same.mean(1)

    def deviation(self, *, linear: bool = False) -> dict[str, np.ndarray]:
        """Root mean squares over rows of what the network has more than the limit [T, R].

        linear: less the network's own linearisation instead, which leaves the non-linearity.
        """
        train = self.linear_train if linear else self.limit_train
        test = self.linear_test if linear else self.limit_test
        gap, behind = self.train - train, self.test - test
        return {
            "train_f": _rms(gap[..., 0]),
            "train_jacobian": _rms(gap[..., 1:]),
            "test_f": _rms(behind[..., 0]),
            "test_jacobian": _rms(behind[..., 1:]),
        }


class Dynamics(NamedTuple):
    """All widths. closed_form: by how much the limit t -> ∞ differs from K(x, X) K⁻¹ Y, relative,
    and the condition number of s K s."""

    steps: tuple[int, ...]
    part: Split
    widths: tuple[Width, ...]
    closed_form: float
    condition: float


def run_study(config: Any, run: Any, raw: Labelled) -> Dynamics:
    """Trains the networks, solves the limit and writes the table of deviations."""
    c = config.dynamics
    widths = checks.distinct("config.dynamics.widths", c.widths)
    part = rows.parts(config, raw, c.rows)
    tests = checks.positive_int("config.dynamics.test_rows", c.test_rows)
    part = part._replace(x_test=part.x_test[:tests], y_test=part.y_test[:tests])
    net = network(config)
    limit = _limits(config, net, part)
    found = tuple(_width(config, run, net, width, part, limit) for width in widths)
    steps = recorded_steps(config.steps)
    table = []
    for each in found:
        gaps = each.deviation()
        own = each.deviation(linear=True) if each.linear_train is not None else {}
        for t, step in enumerate(steps):
            for repeat in range(c.repeats):
                row = {"width": each.width, "step": step, "repeat": repeat}
                row |= {f"{name}_deviation": gap[t, repeat] for name, gap in gaps.items()}
                row |= {f"{name}_nonlinear": gap[t, repeat] for name, gap in own.items()}
                table.append(row)
    run.table("dynamics", table, caption="Root mean square over rows of network less limit, both "
              "from the network's own start; nonlinear: less its own linearisation.")  # fmt: skip
    return Dynamics(steps, part, found, *_closed_form(config, net, part, limit))


def _limits(config: Any, net: Mlp, part: Split) -> tuple[np.ndarray, np.ndarray]:
    return gram(net, part.x_train), gram(net, part.x_test, part.x_train)


def _solve(
    config: Any, kernel: np.ndarray, cross: np.ndarray, part: Split, start: Any, start_at: Any
) -> tuple[np.ndarray, np.ndarray]:
    """(F at the training rows, F at the test rows), each [T, rows, 1+d], by the kernel given."""
    o, steps = config.optim, recorded_steps(config.steps)
    modes = decompose(kernel, len(part.x_train), lam=o.lam, reduction=o.reduction)
    targets = make_targets(part.y_train, part.x_train.shape[1])
    common = {"times": steps, "step": o.lr, "start": start}
    return (
        predict(modes, kernel, targets, start_at=start, **common),
        predict(modes, cross, targets, start_at=start_at, **common),
    )


def _width(
    config: Any, run: Any, net: Mlp, width: int, part: Split, limit: tuple[np.ndarray, np.ndarray]
) -> Width:
    c = config.dynamics
    x, test = (jnp.asarray(each, jnp.float32) for each in (part.x_train, part.x_test))
    linearised = width <= c.linearised

    def measure(params: Params, start: Params) -> dict[str, jax.Array]:
        return {"train": values(net, params, x), "test": values(net, params, test)}

    def kernels(params: Params, start: Params) -> dict[str, jax.Array]:
        return {
            "own": flatten(empirical_jntk(net, start, x)),
            "cross": flatten(empirical_jntk(net, start, test, x)),
        }

    found = train(config, run, "dynamics", width, part.x_train, part.y_train, repeats=c.repeats,
                  measure=measure, at_start=kernels if linearised else None)  # fmt: skip
    start, start_at = found["train"][0].astype(float), found["test"][0].astype(float)
    solved, own = [], []
    for number in range(c.repeats):
        begin = (start[number], start_at[number])
        solved.append(_solve(config, *limit, part, *begin))
        if linearised:
            kernel = found["own"][0, number].astype(float)
            kernel = (kernel + kernel.T) / 2
            own.append(
                _solve(config, kernel, found["cross"][0, number].astype(float), part, *begin)
            )
    predicted = [np.stack(each, 1) for each in zip(*solved, strict=True)]
    linear = [np.stack(each, 1) for each in zip(*own, strict=True)] if own else [None, None]
    return Width(width, found["train"], found["test"], *predicted, *linear)


def _closed_form(
    config: Any, net: Mlp, part: Split, limit: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float]:
    """The end of training by modes against K(x, X) K⁻¹ Y by a linear solve, which knows no λ."""
    import scipy.linalg

    kernel, cross = limit
    targets = make_targets(part.y_train, part.x_train.shape[1])
    modes = decompose(kernel, len(part.x_train), lam=config.optim.lam or 1.0)
    by_modes = kernel_regression(modes, cross, targets, tol=0.0).predictions
    weights = scipy.linalg.solve(kernel, targets.ravel(), assume_a="sym")
    direct = (cross @ weights).reshape(by_modes.shape)
    gap = float(np.abs(by_modes - direct).max() / np.abs(direct).max())
    return gap, float(modes.values[-1] / max(modes.values[0], np.finfo(float).tiny))


def _rms(gap: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(gap.reshape(*gap.shape[:2], -1) ** 2, 2))
