"""Robust training in the limit: solutions, laws of its loss, its end, and finite networks on it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import data, dynamics, network
from rflib.methods.jacobian_ntk.dynamics import (
    decompose,
    function_loss,
    kernel_regression,
    make_targets,
    predict,
    residuals,
    robust_loss,
)
from rflib.methods.jacobian_ntk.kernels import gram
from rflib.methods.jacobian_ntk.network import Mlp

LAM, NET = 0.1, Mlp(3, "erf")


class Problem:
    """Five points in three dimensions, their kernels, targets and a start of their own."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = data.unit_rows(rng.normal(size=(5, 3)))
        self.new = data.unit_rows(rng.normal(size=(2, 3)))
        both = gram(NET, np.concatenate([self.x, self.new]))  # one compilation
        self.kernel, self.cross = both[:20, :20], both[20:, :20]
        self.targets = make_targets(rng.normal(size=5), 3)
        self.start, self.start_new = rng.normal(size=(5, 4)), rng.normal(size=(2, 4))
        self.weights = np.tile([1, LAM, LAM, LAM], 5)
        self.modes = decompose(self.kernel, 5, lam=LAM)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


def loss(f, targets, lam=LAM) -> float:
    with jax.enable_x64(True):
        return float(function_loss(f, targets, lam=lam))


def test_solution_is_that_of_a_runge_kutta_integration(problem):
    p = problem
    both = np.concatenate([p.kernel, p.cross])

    def slope(_, state):
        return -both @ (p.weights * (state[:20] - p.targets.ravel())) / 5

    times = [0.1, 1.0, 10.0, 100.0]
    initial = np.concatenate([p.start.ravel(), p.start_new.ravel()])
    exact = solve_ivp(slope, (0, 100), initial, "DOP853", times, rtol=1e-10, atol=1e-12).y.T
    at = predict(p.modes, p.kernel, p.targets, times=times, start=p.start, start_at=p.start)
    np.testing.assert_allclose(at.reshape(4, -1), exact[:, :20], atol=1e-7)
    new = predict(p.modes, p.cross, p.targets, times=times, start=p.start, start_at=p.start_new)
    np.testing.assert_allclose(new.reshape(4, -1), exact[:, 20:], atol=1e-7)
    left = residuals(p.modes, p.targets, times=times, start=p.start)
    np.testing.assert_allclose(left + p.targets, at, atol=1e-10)


@pytest.mark.parametrize("ridge", [0.0, 0.02])
def test_gradient_descent_is_the_iteration_of_its_recursion(problem, ridge):
    p = problem
    modes = decompose(p.kernel, 5, lam=LAM, ridge=ridge)
    step = 0.9 * modes.stable_step
    f, f0, new, new0 = p.start.ravel(), p.start.ravel(), p.start_new.ravel(), p.start_new.ravel()
    for _ in range(1000):
        error = p.weights * (f - p.targets.ravel()) / 5
        f, new = (
            f - step * (p.kernel @ error + ridge * (f - f0)),
            new - step * (p.cross @ error + ridge * (new - new0)),
        )
    kwargs = {"times": [1000], "step": step, "start": p.start}
    found = predict(modes, p.cross, p.targets, start_at=p.start_new, **kwargs)
    np.testing.assert_allclose(found.ravel(), new, atol=1e-9)
    found = predict(modes, p.kernel, p.targets, start_at=p.start, **kwargs)
    np.testing.assert_allclose(found.ravel(), f, atol=1e-9)


def test_nothing_has_happened_at_time_zero(problem):
    p = problem
    for step in (None, 0.1):
        at = predict(
            p.modes, p.kernel, p.targets, times=[0], step=step, start=p.start, start_at=p.start
        )
        np.testing.assert_array_equal(at[0], p.start)


def test_without_penalty_it_is_the_plain_kernel_and_reduction_rescales_time(problem):
    p = problem
    plain = gram(NET, p.x, kind="ntk")
    alone = decompose(plain, 5, lam=0.0)
    both = decompose(p.kernel, 5, lam=0.0)
    times = [0.3, 5.0, np.inf]
    cross = gram(NET, p.new, p.x, kind="ntk")
    small = predict(alone, cross, p.targets[:, :1], times=times)
    full = predict(both, p.cross, p.targets, times=times)
    np.testing.assert_allclose(full[..., :1], small, atol=1e-10)
    total = decompose(p.kernel, 5, lam=LAM, reduction="sum")
    np.testing.assert_allclose(
        predict(total, p.cross, p.targets, times=[2.0]),
        predict(p.modes, p.cross, p.targets, times=[10.0]),
        atol=1e-12,
    )


def test_loss_falls_at_the_rate_of_its_gradient(problem):
    """dR/dt = −(1/N²) rᵀ Λ K Λ r with the r and Λ of the loss itself: one convention."""
    p = problem
    r = (p.start - p.targets).ravel()
    rate = -(r * p.weights) @ p.kernel @ (p.weights * r) / 25
    step = 1e-5
    near = residuals(p.modes, p.targets, times=[0, step, 2 * step], start=p.start)
    losses = [loss(each + p.targets, p.targets) for each in near]
    slope = (-3 * losses[0] + 4 * losses[1] - losses[2]) / (2 * step)
    assert slope == pytest.approx(rate, rel=1e-5)
    later = residuals(p.modes, p.targets, times=np.geomspace(1e-3, 1e5, 60).tolist(), start=p.start)
    every = [loss(each + p.targets, p.targets) for each in later]
    assert (np.diff(every) <= 1e-14).all() and every[-1] < 0.01 * every[0]


def test_the_end_interpolates_and_does_not_depend_on_lambda(data_root):
    raw = data.algerian()
    x = data.unit_rows(data.standardised(raw.x, raw.x))[:20]
    net = Mlp(6, "erf")
    kernel, y = gram(net, x), raw.y[:20]
    assert np.linalg.eigvalsh(kernel)[0] == pytest.approx(0.160068, abs=5e-7)
    cross = gram(net, data.unit_rows(x + 0.1), x)
    targets = make_targets(y, 11)
    ends = []
    for lam in (1e-4, 1.0):
        modes = decompose(kernel, 20, lam=lam)
        found = kernel_regression(modes, kernel, targets)
        assert found.rank == 240
        np.testing.assert_allclose(found.predictions[:, 0], y, atol=1e-6)
        np.testing.assert_allclose(found.predictions[:, 1:], 0, atol=1e-6)
        ends.append(kernel_regression(modes, cross, targets).predictions)
        np.testing.assert_allclose(ends[-1], predict(modes, cross, targets)[0], atol=1e-12)
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-6)
    ridged = [
        kernel_regression(decompose(kernel, 20, lam=lam, ridge=0.1), cross, targets).predictions
        for lam in (1e-4, 1.0)
    ]
    assert abs(ridged[0] - ridged[1]).max() > 0.05  # a ridge makes λ matter


def test_jacobian_targets_and_several_outputs_are_met(problem):
    p = problem
    y, jacobian = data.teacher(p.x)
    targets = make_targets(np.stack([y, -y], 1), 3, np.stack([jacobian, 2 * jacobian], 2))
    found = kernel_regression(p.modes, p.kernel, targets)
    assert found.predictions.shape == (5, 4, 2)
    np.testing.assert_allclose(found.predictions, targets, atol=1e-7)
    one = predict(p.modes, p.cross, targets[..., 0], times=[1.0, 10.0])
    both = predict(p.modes, p.cross, targets, times=[1.0, 10.0])
    np.testing.assert_allclose(both[..., 0], one, atol=1e-14)
    with pytest.raises(UserError, match=r"jacobians has shape \(5, 2\)"):
        make_targets(y, 3, jacobian[:, :2])


def test_repeated_points_lower_the_rank_and_nothing_else(problem):
    p = problem
    twice = np.concatenate([p.x, p.x])
    both = gram(NET, np.concatenate([twice, p.new]))
    modes = decompose(both[:40, :40], 10, lam=LAM)
    assert modes.rank() == 20 and len(modes.values) == 40
    targets = np.concatenate([p.targets, p.targets])
    found = kernel_regression(modes, both[40:, :40], targets)
    single = kernel_regression(p.modes, p.cross, p.targets)
    assert found.rank == single.rank == 20 and np.isfinite(found.coefficients).all()
    np.testing.assert_allclose(found.predictions, single.predictions, atol=1e-6)


def test_evidence_and_leave_one_out_are_those_of_the_gaussian_process(problem):
    from scipy.stats import multivariate_normal

    p = problem
    modes = decompose(p.kernel, 5, lam=LAM, ridge=0.01)
    noise = 5 * 0.01 / p.weights
    covariance = p.kernel + np.diag(noise)
    expected = multivariate_normal(np.zeros(20), covariance).logpdf(p.targets.ravel())
    assert dynamics.log_evidence(modes, p.targets) == pytest.approx(expected, rel=1e-9)
    found = dynamics.leave_one_out(modes, p.targets)
    for i in range(5):
        rest = np.arange(20) // 4 != i
        weights = np.linalg.solve(covariance[np.ix_(rest, rest)], p.targets.ravel()[rest])
        assert found[i] == pytest.approx(p.kernel[4 * i, rest] @ weights, rel=1e-8)


def test_gradient_of_the_loss_is_that_of_central_differences(float64):
    net = Mlp(2, "gelu", kappa=0.7, sigma_b=0.2)
    x = np.random.default_rng(0).normal(size=(4, 3))
    y, jacobian = data.teacher(x)
    targets = jnp.asarray(make_targets(np.stack([y, y * y], 1), 3, np.stack([jacobian] * 2, 2)))
    params = network.init(jax.random.key(0), net, 3, 6, outputs=2)

    @jax.jit
    def every(params):  # one compilation
        def one(params):
            return robust_loss(net, params, x, targets[..., 0], lam=0.3)

        several = robust_loss(net, params, x, targets, lam=0.3)
        return *jax.value_and_grad(one)(params), several, network.all_values(net, params, x)

    value, gradient, several, found = every(params)
    for name, leaf in params.items():
        way = np.random.default_rng(1).normal(size=leaf.shape)
        ahead, behind = (every(params | {name: leaf + s * way})[0] for s in (1e-5, -1e-5))
        slope = float(jnp.vdot(gradient[name], way))
        assert slope == pytest.approx(float(ahead - behind) / 2e-5, rel=1e-5, abs=1e-9), name
    square = (found - targets) ** 2
    parts = 0.5 * square[:, 0].sum(0) + 0.15 * square[:, 1:].sum((0, 1))
    assert value == pytest.approx(float(parts[0]) / 4, rel=1e-12)
    assert several == pytest.approx(float(parts.sum()) / 4, rel=1e-12)


def test_finite_networks_approach_the_discrete_solution_as_they_widen():
    x = data.sphere_net(12)
    net = Mlp(2, "erf", kappa=0.1)
    targets = make_targets(data.teacher(x)[0], 4)
    kernel = gram(net, x)
    modes = decompose(kernel, 12, lam=0.1)
    x32, targets32 = x.astype(np.float32), targets.astype(np.float32)

    @functools.partial(jax.jit, static_argnums=1)
    def trained(key, width):
        start = network.init(key, net, 4, width)
        slope = jax.grad(lambda params: robust_loss(net, params, x32, targets32, lam=0.1))

        def step(params, _):
            return jax.tree.map(lambda p, g: p - g, params, slope(params)), None

        end, _ = jax.lax.scan(step, start, None, 200)
        ends = (network.values(net, each, x32) for each in (start, end))
        return *ends, network.movement(end, start)

    deviations, movements = [], []
    for width in (64, 256, 1024):
        found = [trained(jax.random.key(seed), width) for seed in range(5)]
        apart = []
        for start, end, _ in found:
            begin = np.asarray(start, float)
            kwargs = {"times": [200], "step": 1.0, "start": begin, "start_at": begin}
            limit = predict(modes, kernel, targets, **kwargs)[0]
            apart.append(np.abs(np.asarray(end) - limit).max())
        deviations.append(np.mean(apart))
        movements.append(np.mean([float(moved) for *_, moved in found]))
    assert deviations[0] > deviations[1] > deviations[2] and deviations[2] < 0.12
    np.testing.assert_allclose(movements, [0.084, 0.020, 0.0055], rtol=0.2)


def test_mistakes_are_explained(problem):
    p = problem
    with pytest.raises(UserError, match="lam=-1 must lie in"):
        decompose(p.kernel, 5, lam=-1)
    with pytest.raises(UserError, match="no matrix of n=3 blocks"):
        decompose(p.kernel, 3, lam=LAM)
    with pytest.raises(UserError, match="'total' is not one of"):
        decompose(p.kernel, 5, lam=LAM, reduction="total")
    with pytest.raises(UserError, match=r"times=0\.5 must be a whole number"):
        predict(p.modes, p.cross, p.targets, times=[0.5], step=0.1)
    with pytest.raises(UserError, match="do not fit a kernel of 20 rows"):
        predict(p.modes, p.cross, p.targets[:4])
    with pytest.raises(UserError, match="residuals need lam > 0"):
        residuals(decompose(p.kernel, 5, lam=0.0), p.targets, times=[1.0])
