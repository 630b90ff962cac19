"""The block induction by sampling against the exact kernels, and what the way of drawing does."""

import jax
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import kernels
from rflib.methods.jacobian_ntk.monte_carlo import monte_carlo
from rflib.methods.jacobian_ntk.network import Mlp


def test_induction_of_one_pair_by_two_million_draws_is_the_exact_kernel():
    net = Mlp(2, "gelu", kappa=0.5)
    x = np.array([[0.6, 0.8, 0.0], [0.3, -0.5, 1.1]], np.float32)
    keys = jax.random.split(jax.random.key(0), 20)
    run = jax.jit(jax.vmap(lambda key: monte_carlo(key, net, x, 100_000)))
    found = [np.asarray(each, float) for each in run(keys)]
    with jax.enable_x64(True):
        double = x.astype(float)
        exact = kernels.jacobian_nngp(net, double), kernels.jacobian_ntk(net, double)
    for mine, limit in zip(found, exact, strict=True):
        last = mine[:, -1]
        error = last.std(0, ddof=1) / 20**0.5
        assert (np.abs(last.mean(0) - limit) <= 5 * error + 1e-6).all()


@pytest.fixture(scope="module")
def sampled() -> dict[str, np.ndarray]:
    rows = np.random.default_rng(0).normal(size=(6, 3))
    x = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    net = Mlp(2, "erf", sigma_b=0.1)
    with jax.enable_x64(True):
        found = {
            draws: kernels.flatten(
                np.asarray(monte_carlo(jax.random.key(1), net, x, 3000, draws=draws)[1][-1])
            )
            for draws in ("joint", "pairs")
        }
    return found | {"exact": kernels.gram(net, x)}


def test_both_ways_of_drawing_are_near_the_kernel_and_symmetric(sampled):
    scale = abs(sampled["exact"]).max()
    for draws in ("joint", "pairs"):
        np.testing.assert_allclose(sampled[draws], sampled[draws].T, atol=1e-12 * scale)
        assert abs(sampled[draws] - sampled["exact"]).max() < 0.1 * scale


def test_joint_draws_stay_positive_and_draws_by_pairs_do_not(sampled):
    joint, pairs = (np.linalg.eigvalsh(sampled[draws]) for draws in ("joint", "pairs"))
    assert joint[0] >= -1e-12 * joint[-1]
    assert pairs[0] < -1e-3 * pairs[-1]


def test_mistakes_are_explained():
    x = np.ones((2, 2), np.float32)
    with pytest.raises(UserError, match="draws='all' is not one of"):
        monte_carlo(jax.random.key(0), Mlp(1), x, 10, draws="all")
    with pytest.raises(UserError, match="no second derivative"):
        monte_carlo(jax.random.key(0), Mlp(1, "relu"), x, 10)
