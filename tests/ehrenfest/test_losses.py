"""Losses: their minimisers by exact enumeration, their targets, and the bridge between them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.diffusion.param import convert
from rflib.methods.ehrenfest import losses, ratio, theory, transition
from rflib.methods.ehrenfest.losses import LOSSES, Noised, find_loss
from rflib.methods.ehrenfest.process import make_process
from rflib.methods.ehrenfest.reverse import HEADS

SIZE = 12
P0 = np.random.default_rng(3).dirichlet(np.ones(SIZE + 1))


def _joint(w):
    """p(k, k0) [13, 13] and all pairs as a batch of one coordinate."""
    law = np.stack([theory.transition_column(SIZE, k0, w) for k0 in range(SIZE + 1)], 1)
    k, k0 = (jnp.asarray(a.reshape(-1, 1)) for a in np.indices((SIZE + 1, SIZE + 1)))
    return law * P0[None], k, k0


def test_regression_of_conditional_ratios_is_the_marginal_ratio_with_zero_gradient(float64):
    """The closed-form minimiser of a table over the exact joint law, and jax.grad there."""
    w = 0.6
    joint, k, k0 = _joint(w)
    targets = jax.jit(lambda k, k0: ratio.exact(k, k0, SIZE, w))(k, k0)
    weights = jnp.asarray(joint.reshape(-1))
    p = joint.sum(1)
    for target, exact in zip(
        targets, (np.append(p[1:], 0) / p, np.append(0, p[:-1]) / p), strict=True
    ):
        table = (joint * np.asarray(target).reshape(joint.shape)).sum(1) / p
        np.testing.assert_allclose(table, exact, atol=1e-10)

        def loss(table, target=target):
            return jnp.sum(weights * jnp.square(table[k[:, 0]] - target[:, 0]))

        gradient = jax.jit(jax.grad(loss))
        assert np.abs(gradient(jnp.asarray(exact))).max() < 1e-8
        assert np.abs(gradient(jnp.asarray(exact + 0.1))).max() > 1e-3


def test_second_moment_of_the_ratio_target_grows_as_one_over_the_time(float64):
    """E|R+|² τ tends to a constant: the heavy tail that the score does not have."""
    scaled = []
    for tau in (1e-2, 1e-3, 1e-4):
        joint, k, k0 = _joint(np.exp(-tau))
        target = jax.jit(lambda k, k0, w: ratio.exact(k, k0, SIZE, w))(k, k0, np.exp(-tau))
        second = (joint.reshape(-1) * np.square(np.asarray(target.up)[:, 0])).sum()
        scaled.append(second * tau)
    assert abs(scaled[2] / scaled[1] - 1) < 0.01 and scaled[2] > 0.1


def _apply(shape):
    """A network of one number an output: it returns its parameter."""
    return lambda params, x, t: jnp.broadcast_to(params, (*x.shape, shape)).astype(x.dtype)


@functools.lru_cache
def _value_and_gradient(kind, noise_kind):
    process = make_process(SIZE, "song")
    loss = LOSSES[kind]
    heads = HEADS[loss.head] or SIZE + 1
    k0 = jnp.asarray(np.random.default_rng(0).choice(SIZE + 1, (64, 3), p=P0), jnp.int32)

    @jax.jit
    def run(params, key):
        return jax.value_and_grad(
            lambda p: loss.value(_apply(heads), p, key, k0, process, noise_kind=noise_kind),
            has_aux=True,
        )(params)

    return run(jnp.full((1, 1, heads), 0.1), jax.random.key(0))


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_is_finite_with_a_gradient_and_ten_bins(kind):
    (value, aux), gradient = _value_and_gradient(kind, LOSSES[kind].noise)
    assert value.shape == () and np.isfinite(value)
    assert np.all(np.isfinite(gradient)) and np.any(gradient != 0)
    assert aux.bins.shape == aux.target_variance.shape == (10,)
    # 64 stratified times, 6 or 7 a bin: the bins' mean is nearly the loss.
    np.testing.assert_allclose(np.mean(aux.bins), value, rtol=0.1)


def test_ratio_loss_is_the_mean_square_of_the_exact_targets():
    """Recomputed from the same draw, term by term."""
    process = make_process(SIZE, "song")
    k0 = jnp.asarray(np.random.default_rng(0).choice(SIZE + 1, (64, 3), p=P0), jnp.int32)
    (value, aux), _ = _value_and_gradient("ratio", "binomial")
    seen = jax.jit(lambda key: losses.noise(key, k0, process, "binomial"))(jax.random.key(0))
    assert seen.k is not None and seen.k.dtype == jnp.int32
    w = np.asarray(seen.w)
    squares = []
    for i, j in np.ndindex(64, 3):
        law = theory.transition_column(SIZE, int(k0[i, j]), float(w[i, 0]))
        law, k = np.concatenate([[0], law, [0]]), int(seen.k[i, j]) + 1
        for step in (1, -1):
            squares.append((np.exp(0.1) - law[k + step] / law[k]) ** 2)
    expected = np.sum(squares) / (64 * 3) / process.delta**2
    np.testing.assert_allclose(value, expected, rtol=1e-3)
    assert float(aux.clipped) == 0 and float(aux.target_variance[0]) > 1


def test_gaussian_targets_are_clipped_by_default_where_binomial_noise_needs_it():
    (_, aux), _ = _value_and_gradient("gauss", "binomial")
    assert 0 < float(aux.clipped) < 0.5


def test_optimal_eps_of_a_single_state_is_known_and_parametrisations_agree():
    """Data are one lattice point: ε, score, μ and x_0 are functions of x_t, and the loss is 0."""
    process = make_process(16, "song")
    k0 = jnp.full((32, 2), 11, jnp.int32)
    x0 = process.to_x(k0)

    def outputs(x, t):
        w, variance = (f(t)[:, None] for f in (process.w, process.sig2))
        eps = (x - w * x0) / jnp.sqrt(variance)
        return {"ou": eps, "ou_score": -(x - w * x0) / variance, "taylor1": w * x0}

    @jax.jit
    def values(key):
        return {
            kind: LOSSES[kind].value(
                lambda p, x, t, kind=kind: outputs(x, t)[kind][..., None], {}, key, k0, process
            )[0]
            for kind in ("ou", "ou_score", "taylor1")
        }

    for kind, value in values(jax.random.key(0)).items():
        assert value < 1e-9, kind
    seen = jax.jit(lambda key: losses.noise(key, k0, process, "binomial"))(jax.random.key(0))
    alpha, sigma = (process.w(seen.t), jnp.sqrt(process.sig2(seen.t)))
    found = outputs(seen.x, seen.t)
    as_score = convert("eps", "score", found["ou"], seen.x, alpha, sigma)
    np.testing.assert_allclose(as_score, found["ou_score"], rtol=1e-5)
    as_x0 = convert("eps", "x0", found["ou"], seen.x, alpha, sigma)
    kept = np.asarray(alpha) > 0.05  # where the signal does not drown in rounding
    np.testing.assert_allclose(as_x0[kept], x0[kept], rtol=1e-4)


def test_ratio_loss_of_a_score_is_twice_the_score_loss_in_the_limit(float64):
    """With R± = 1 ± δ s the ratio loss over δ² tends to 2 |s + (x - μ)/σ²|² as S grows.

    By enumeration of the transition law from one state, so without sampling noise.
    """
    w, gaps = 0.6, []
    for size in (100, 400, 1000):
        k0 = size // 2 + round(0.25 * np.sqrt(size))
        k = jnp.arange(size + 1)
        law = theory.transition_column(size, k0, w)
        process = make_process(size)
        x, mu, variance = process.to_x(k), w * process.to_x(jnp.asarray(k0)), 1 - w * w
        score = 0.3 - 0.5 * x
        targets = jax.jit(lambda k, k0, n: ratio.exact(k, k0, n, w), static_argnums=2)(
            k, jnp.asarray([k0]), size
        )
        kept = law > 1e-13  # the rest has no weight, and ratios of rounding errors
        found = ratio.score(score, process.delta)
        square = sum(np.square(f - t) for f, t in zip(found, targets, strict=True))
        one = (law * square)[kept].sum() / process.delta**2
        two = 2 * (law * np.square(score + (x - mu) / variance))[kept].sum()
        gaps.append(abs(one / two - 1))
    assert gaps[2] < 0.01 and gaps[0] > 3 * gaps[1] > 6 * gaps[2]


def test_cross_entropy_of_the_exact_posterior_is_the_conditional_entropy():
    """The loss of the true posterior is the entropy of k_0 given k_t."""
    process = make_process(SIZE, "song", t_min=0.3, t_max=0.3001)  # one time
    w = float(process.w(0.3))
    joint, _, _ = _joint(w)
    posterior = np.log(joint / joint.sum(1, keepdims=True))
    entropy = -(joint * posterior).sum()
    k0 = jnp.asarray(np.random.default_rng(1).choice(SIZE + 1, (500, 40), p=P0), jnp.int32)
    table = jnp.asarray(posterior, jnp.float32)

    @jax.jit
    def value(key):
        apply = lambda p, x, t: table[process.to_k(x)]  # noqa: E731
        return losses.ce_loss(apply, {}, key, k0, process)[0]

    np.testing.assert_allclose(value(jax.random.key(0)), entropy, rtol=0.01)


def test_gaussian_noise_leaves_the_lattice_and_has_the_same_moments():
    process = make_process(16, "song", t_min=0.2, t_max=0.2001)
    k0 = jnp.full((4000, 5), 12, jnp.int32)
    draws: dict[str, Noised] = jax.jit(
        lambda key: {k: losses.noise(key, k0, process, k) for k in ("binomial", "gaussian")}
    )(jax.random.key(0))
    for kind, seen in draws.items():
        gap = (seen.x - seen.mu) / np.sqrt(seen.sig2)
        assert abs(gap.mean()) < 0.03 and abs(gap.std() - 1) < 0.03, kind
    assert draws["gaussian"].k is None
    np.testing.assert_array_equal(process.to_k(draws["binomial"].x), draws["binomial"].k)


def test_wrong_arguments_are_named():
    process, k0 = make_process(4), jnp.zeros((4, 1), jnp.int32)
    args = (_apply(2), jnp.zeros((1, 1, 2)), jax.random.key(0), k0, process)
    with pytest.raises(UserError, match="binomial"):
        losses.ratio_loss(*args, noise_kind="gaussian")
    with pytest.raises(UserError, match=r"\(4, 1, 2\).*\(4, 1, 1\)"):
        losses.ou_loss(*args)
    with pytest.raises(UserError, match="taylor1"):
        find_loss("taylor")
    assert transition.METHODS[0] == "particles"
