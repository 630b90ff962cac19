"""Eigen-features: they add up to the regressor, and attacks find what first order predicts."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import data, features
from rflib.methods.jacobian_ntk.dynamics import decompose, kernel_regression, make_targets
from rflib.methods.jacobian_ntk.kernels import gram
from rflib.methods.jacobian_ntk.network import Mlp

NET, LAM, EPS = Mlp(3, "erf"), 0.1, 0.05


class Problem:
    def __init__(self) -> None:
        x = data.unit_rows(np.random.default_rng(0).normal(size=(24, 3)))
        self.x, self.test = x[:8], x[8:]
        y = np.where(x[:, 0] + 0.4 * x[:, 1] > 0, 1.0, -1.0)
        self.y, self.y_test = y[:8], y[8:]
        both = gram(NET, x)  # one compilation
        self.kernel, self.cross = both[:32, :32], both[32:, :32]
        self.targets = make_targets(self.y, 3)
        self.found = {
            lam: features.eigen_features(decompose(self.kernel, 8, lam=lam), self.targets)
            for lam in (0.0, LAM)
        }


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


@pytest.mark.parametrize("lam", [0.0, LAM])
def test_features_add_up_to_the_regressor_and_fall_in_order(problem, lam):
    p = problem
    found = p.found[lam]
    regression = kernel_regression(decompose(p.kernel, 8, lam=lam), p.cross, p.targets)
    outputs = features.evaluate(found, p.cross)
    assert outputs.shape == (16, 4, 32 if lam else 8) and regression.rank == len(found.values)
    np.testing.assert_allclose(outputs.sum(-1), regression.predictions, atol=1e-8)
    assert (np.diff(found.values) <= 0).all()


def test_features_are_orthogonal_parts_of_the_targets_at_the_training_points(problem):
    p = problem
    outputs = features.evaluate(p.found[LAM], p.kernel).reshape(32, -1)
    weights = np.tile([1, LAM, LAM, LAM], 8)
    inner = outputs.T @ (weights[:, None] * outputs)
    np.testing.assert_allclose(inner, np.diag(np.diag(inner)), atol=1e-8)
    np.testing.assert_allclose(outputs.sum(1), p.targets.ravel(), atol=1e-8)


def test_a_threshold_drops_small_eigenvalues(problem):
    p = problem
    modes = decompose(p.kernel, 8, lam=LAM)
    cut = float(np.sqrt(modes.values[20] * modes.values[21]) / modes.values[-1])
    assert len(features.eigen_features(modes, p.targets, tol=cut).values) == 32 - 21


@pytest.mark.parametrize("lam", [0.0, LAM])
def test_attacks_do_at_most_harm_and_agree_with_first_order_at_small_radius(problem, lam):
    p = problem
    found = p.found[lam]
    outputs = features.evaluate(found, p.cross)[..., :4]
    clean = p.y_test[:, None] * outputs[:, 0]
    for eps, share in ((1e-4, 1e-3), (EPS, 0.2)):
        first = features.first_order_margins(outputs, p.y_test, eps)
        worst = features.attack_margins(
            NET, p.x, found.coefficients[..., :4], p.test, p.y_test, eps
        )
        assert (worst <= clean + 1e-12).all()
        # Both are a loss of about eps |∂f/∂x|; they differ by the curvature.
        assert (abs(worst - first) <= share * (clean - first) + 1e-9).mean() > 0.95
        assert (first < clean).all()


def test_measures_are_the_written_means(problem):
    p = problem
    outputs = features.evaluate(p.found[LAM], p.cross)[..., :3]
    worst = features.first_order_margins(outputs, p.y_test, EPS)
    found = features.measure(outputs, p.y_test, worst)
    f, slope = outputs[:, 0, 1], np.linalg.norm(outputs[:, 1:, 1], axis=1)
    rms = np.sqrt(np.mean(f**2))
    assert found.accuracy[1] == np.mean(np.sign(f) == p.y_test)
    assert found.usefulness[1] == pytest.approx(np.mean(p.y_test * f) / rms)
    assert found.robust_accuracy[1] == np.mean(p.y_test * f - EPS * slope > 0)
    assert found.robust_usefulness[1] == pytest.approx(np.mean(p.y_test * f - EPS * slope) / rms)
    zero = features.measure(np.zeros((16, 4, 1)), p.y_test, np.zeros((16, 1)))
    assert zero.usefulness[0] == 0 and zero.accuracy[0] == 0


def test_rank_correlation_is_that_of_scipy_with_its_interval_and_without_noise():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    one = rng.normal(size=40).round(1)  # with ties
    other = one + rng.normal(size=40)
    found = features.spearman(one, other)
    assert found.value == pytest.approx(spearmanr(one, other).statistic, abs=1e-12)
    assert found.low < found.value < found.high and found.count == 40
    assert features.spearman(one, other, keep=one > 0).count == (one > 0).sum()
    assert np.isnan(features.spearman(one, np.zeros(40)).value)
    keep = features.telling(np.array([0.5, 0.6, 0.61, 0.3]), 100)
    assert keep.tolist() == [False, False, True, True]


def test_features_of_several_outputs_are_refused(problem):
    p = problem
    with pytest.raises(UserError, match="features are those of one output"):
        features.eigen_features(decompose(p.kernel, 8, lam=LAM), np.zeros((8, 4, 2)))
