"""The U-Net: zero at the start, options that keep their promises; convolution by two routes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.nn.conv import conv2d
from rflib.nn.embed import FourierFeatures, LabelEmbedding, drop_labels, time_sinusoid
from rflib.nn.features import Feat2d
from rflib.nn.unet import Attention, GroupNorm, UNet

TINY = {"base": 8, "mult": (1, 2), "blocks": 1, "attn_levels": (1,), "groups": 4}


@functools.lru_cache
def _made(**options):
    net = UNet(out=3, **{**TINY, **options})
    x, t = jax.random.normal(jax.random.key(0), (2, 8, 8, 1)), jnp.asarray([0.1, 0.7])
    cond = jax.random.normal(jax.random.key(1), (2, 5)) if "cond_merge" in options else None
    variables = jax.jit(net.init)(jax.random.key(2), x, t, cond)
    moved = jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(leaf.size), leaf.shape),
        variables,
    )
    return jax.jit(net.apply), x, t, cond, variables, moved


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (7, 5)])
def test_both_convolutions_and_their_gradients_are_equal(stride, size):
    x = jax.random.normal(jax.random.key(0), (2, *size, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 4))

    @jax.jit
    def both(x, kernel):
        results = []
        for impl in ("lax", "matmul"):
            y, pull = jax.vjp(lambda x, k, i=impl: conv2d(x, k, stride=stride, impl=i), x, kernel)
            results.append((y, *pull(jnp.cos(y))))
        return results

    for one, other in zip(*both(x, kernel), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_network_starts_at_zero_and_can_leave_it():
    apply, x, t, cond, variables, moved = _made()
    out = apply(variables, x, t, cond)
    assert out.shape == (2, 8, 8, 3)
    np.testing.assert_array_equal(out, 0)
    assert np.abs(apply(moved, x, t, cond)).max() > 0.1


def test_gradient_reaches_every_parameter():
    apply, x, t, cond, _, moved = _made()
    loss = lambda v: jnp.sum(jnp.square(apply(v, x, t, cond) - 1))  # noqa: E731
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(moved)):
        assert np.abs(leaf).max() > 0, jax.tree_util.keystr(path)


@pytest.mark.parametrize("merge", ["sum", "concat"])
def test_time_and_condition_change_the_output(merge):
    options = {"cond_mode": "scale_shift", "resample": "resblock"}
    apply, x, t, cond, _, moved = _made(cond_merge=merge, **options)
    base = apply(moved, x, t, cond)
    assert np.abs(base - apply(moved, x, t + 0.2, cond)).max() > 1e-3
    assert np.abs(base - apply(moved, x, t, -cond)).max() > 1e-3


def test_examples_do_not_mix():
    apply, x, t, cond, _, moved = _made()
    whole = apply(moved, x, t, cond)
    swapped = apply(moved, x[::-1], t[::-1], cond)
    np.testing.assert_allclose(whole, swapped[::-1], atol=1e-4)


def test_recomputation_and_the_matmul_convolution_change_nothing():
    apply, x, t, cond, variables, moved = _made()
    plain = apply(moved, x, t, cond)
    for options in ({"remat": True}, {"impl": "matmul"}):
        other = UNet(out=3, **TINY, **options)
        assert jax.tree.structure(variables) == jax.tree.structure(
            jax.eval_shape(other.init, jax.random.key(0), x, t, cond)
        )
        np.testing.assert_allclose(jax.jit(other.apply)(moved, x, t, cond), plain, atol=1e-4)


def test_half_precision_keeps_parameters_and_returns_single():
    net = UNet(out=3, dtype=jnp.bfloat16, **TINY)
    apply, x, t, cond, _, moved = _made()
    out = jax.jit(net.apply)(moved, x, t, cond)
    full = apply(moved, x, t, cond)
    assert out.dtype == jnp.float32
    assert np.abs(out - full).max() < 0.1 * np.abs(full).max()


def test_group_norm_has_unit_moments_in_each_group():
    x = 3 + 2 * jax.random.normal(jax.random.key(0), (2, 4, 4, 6))
    y, _ = GroupNorm(3).init_with_output(jax.random.key(0), x)
    parts = np.asarray(y).reshape(2, 16, 3, 2)
    np.testing.assert_allclose(parts.mean((1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(parts.var((1, 3)), 1, atol=1e-3)


def test_attention_is_equivariant_to_the_order_of_pixels():
    net = Attention(heads=2, groups=4)
    x = jax.random.normal(jax.random.key(0), (1, 2, 3, 8))
    v = jax.tree.map(lambda p: p + 0.3, jax.jit(net.init)(jax.random.key(1), x))
    order = np.asarray([3, 1, 5, 0, 2, 4])
    turn = lambda x: x.reshape(1, 6, 8)[:, order].reshape(x.shape)  # noqa: E731
    apply = jax.jit(net.apply)
    np.testing.assert_allclose(apply(v, turn(x)), turn(apply(v, x)), atol=1e-5)


def test_embeddings_are_their_formulas():
    t = jnp.asarray([0.0, 0.25])
    found = time_sinusoid(t, 4)
    expected = [f(250 * r) for f in (np.cos, np.sin) for r in (1, 0.01)]
    np.testing.assert_allclose(found[1], expected, rtol=1e-4)
    net = FourierFeatures(6)
    y, variables = net.init_with_output(jax.random.key(0), t)
    np.testing.assert_allclose(jnp.square(y[:, :3]) + jnp.square(y[:, 3:]), 1, rtol=1e-5)
    gradient = jax.grad(lambda v: net.apply(v, t).sum())(variables)
    np.testing.assert_array_equal(gradient["params"]["frequency"], 0)
    rows, v = LabelEmbedding(3, 4).init_with_output(jax.random.key(0), jnp.asarray([3, 0]))
    np.testing.assert_array_equal(rows, v["params"]["table"][np.asarray([3, 0])])


def test_labels_are_dropped_with_their_probability():
    label = jnp.zeros((10_000,), jnp.int32)
    found = np.asarray(drop_labels(jax.random.key(0), label, 5, 0.2))
    assert set(found.tolist()) == {0, 5} and abs((found == 5).mean() - 0.2) < 0.02


@pytest.mark.parametrize(("size", "last"), [(8, 2), (16, 2), (28, 4)])
def test_classifier_has_128_features_from_a_map_of_at_least_two_by_two(size, last):
    out, _ = jax.eval_shape(
        Feat2d(10).init_with_output, jax.random.key(0), jnp.zeros((2, size, size, 1))
    )
    assert out.features.shape == (2, 128) and out.logits.shape == (2, 10)
    assert out.maps[-1].shape == (2, last, last, 64)


def test_features_are_the_mean_and_the_maximum_of_the_last_map():
    x = jax.random.uniform(jax.random.key(0), (2, 8, 8, 1), minval=-1)
    out, _ = jax.jit(lambda x: Feat2d(3).init_with_output(jax.random.key(1), x))(x)
    last = np.asarray(out.maps[-1])
    both = np.concatenate([last.mean((1, 2)), last.max((1, 2))], 1)
    np.testing.assert_allclose(out.features, both, atol=1e-5)
    assert np.abs(both[:, :64] - both[:, 64:]).max() > 1e-3


def test_wrong_arguments_are_named():
    x, t = jnp.zeros((1, 6, 6, 1)), jnp.zeros(1)
    with pytest.raises(UserError, match="halved 2 times"):
        UNet(out=1, base=8, mult=(1, 1, 1), groups=4).init(jax.random.key(0), x, t)
    with pytest.raises(UserError, match="attn_levels"):
        UNet(out=1, base=8, mult=(1,), attn_levels=(1,))
    with pytest.raises(UserError, match="impl"):
        conv2d(x, jnp.zeros((3, 3, 1, 1)), impl="fft")
    with pytest.raises(UserError, match="odd"):
        conv2d(x, jnp.zeros((2, 2, 1, 1)))
