"""Shifted slices and a product against XLA's convolution and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rflib.core.errors import UserError
from rflib.nn.conv import PADDINGS, Conv1d, conv1d, pad_time


def xla(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """[B, L, C] with weight [F, K, C], by the library's convolution."""
    y = lax.conv_general_dilated(
        x, weight, (1,), "VALID", dimension_numbers=("NWC", "OWI", "NWC"), precision="highest"
    )
    return y + bias[None, None]


@pytest.mark.parametrize(("length", "taps"), [(9, 3), (4, 4), (6, 1)])
def test_convolution_and_its_gradients_equal_those_of_xla(length, taps):
    rng = np.random.default_rng(0)
    shapes = [(2, length, 3), (5, taps, 3), (5,), (2, length - taps + 1, 5)]
    x, weight, bias, cotangent = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)

    @jax.jit
    def both(*inputs: jax.Array) -> list:
        results = []
        for convolve in (conv1d, xla):
            y, pull = jax.vjp(convolve, *inputs)
            results.append((y, *pull(cotangent)))
        return results

    for one, other in zip(*both(x, weight, bias), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_convolution_takes_any_leading_axes_and_vmaps_over_kernels():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(4, 2, 7, 3)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(4, 5, 3, 3)), jnp.float32)
    fast = jax.jit(conv1d)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(conv1d))(x, weight),
        np.stack([fast(x, w)[i] for i, w in enumerate(weight)]),
        atol=1e-5,
    )
    expected = np.einsum(
        "bnlkc,fkc->bnlf", x[:, :, np.arange(5)[:, None] + np.arange(3)], weight[0]
    )
    np.testing.assert_allclose(fast(x, weight[0]), expected, atol=1e-5)


@pytest.mark.parametrize("padding", sorted(PADDINGS))
def test_padding_reads_the_series_at_clipped_wrapped_or_empty_places(padding):
    x = np.random.default_rng(2).normal(size=(2, 5, 3)).astype(np.float32)
    place = np.arange(-2, 8)
    expected = {
        "zeros": np.where(((place >= 0) & (place < 5))[:, None], x[:, np.clip(place, 0, 4)], 0),
        "replicate": x[:, np.clip(place, 0, 4)],
        "circular": x[:, place % 5],
    }[padding]
    np.testing.assert_array_equal(pad_time(jnp.asarray(x), 2, 3, padding), expected)


def test_circular_convolution_commutes_with_rotation_of_time():
    module = Conv1d(3, 4, taps=3, pad=1, padding="circular", use_bias=False)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 6, 3)).astype(np.float32)
    v = {"params": {"weight": jnp.asarray(rng.normal(size=(4, 3, 3)), jnp.float32)}}
    apply = jax.jit(module.apply)
    one, other = apply(v, np.roll(x, 2, 1)), np.roll(apply(v, x), 2, 1)
    assert one.shape == (2, 6, 4)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_module_starts_within_1_over_sqrt_fan_in_unless_told_otherwise():
    x = jnp.zeros((1, 9, 10))
    drawn = Conv1d(10, 64, taps=5).init(jax.random.key(0), x)["params"]
    for leaf in jax.tree.leaves(drawn):
        assert 0.9 * 50**-0.5 < float(jnp.abs(leaf).max()) <= 50**-0.5
    flat = Conv1d(10, 64, 5, weight_init=jax.nn.initializers.ones).init(jax.random.key(0), x)
    np.testing.assert_array_equal(flat["params"]["weight"], np.ones((64, 5, 10)))


def test_too_few_steps_and_unknown_paddings_are_refused():
    with pytest.raises(UserError, match="2 time steps are too few for a kernel of 3 taps"):
        conv1d(jnp.zeros((1, 2, 1)), jnp.zeros((1, 3, 1)))
    with pytest.raises(UserError, match=r"padding='replicat' .* did you mean 'replicate'"):
        pad_time(jnp.zeros((1, 2, 1)), 1, 1, "replicat")
    with pytest.raises(UserError, match="at least one time step"):
        pad_time(jnp.zeros((1, 0, 1)), 1, 1, "replicate")
