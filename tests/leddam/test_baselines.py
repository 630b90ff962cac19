"""DLinear (AAAI 2023) and iTransformer (ICLR 2024) against independent numpy forward passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.special import erf

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.baselines import DLinear, ITransformer
from rflib.nn import variables

LINEAR = DLinear(3, 30, 7)
INVERTED = ITransformer(3, 12, 7, d_model=16, d_ff=24, n_heads=4, n_layers=2)
FAST = jax.jit(variables.apply, static_argnums=0, static_argnames="train")


@functools.partial(jax.jit, static_argnums=0)
def initial(module: DLinear | ITransformer, key: jax.Array) -> dict:
    return variables.init(module, key, (1, module.seq_len, module.n_series))


def shaken(module: DLinear | ITransformer) -> dict:
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda a: jnp.asarray(np.asarray(a) + 0.2 * rng.random(a.shape), jnp.float32),
        initial(module, jax.random.key(0)),
    )


def windows(module: DLinear | ITransformer, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(4, module.seq_len, module.n_series)).cumsum(1).astype(np.float32)


def lin(p: dict, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(p["weight"], np.float64).T + np.asarray(p["bias"], np.float64)


def layer_norm(p: dict, x: np.ndarray) -> np.ndarray:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * np.asarray(p["scale"], np.float64) + np.asarray(p["bias"], np.float64)


def numpy_dlinear(kernel: np.ndarray, bias: float, p: dict, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64).transpose(0, 2, 1)
    half, length = len(kernel) // 2, x.shape[-1]
    place = np.clip(np.arange(length)[:, None] + np.arange(len(kernel)) - half, 0, length - 1)
    trend = x[..., place] @ np.asarray(kernel, np.float64) + bias
    return (lin(p["trend"], trend) + lin(p["seasonal"], x - trend)).transpose(0, 2, 1)


def numpy_itransformer(module: ITransformer, p: dict, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64).transpose(0, 2, 1)
    mean, std = x.mean(-1, keepdims=True), np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    tokens = lin(p["embedding"], (x - mean) / std)
    width = module.d_model // module.n_heads
    for i in range(module.n_layers):
        q = p[f"layers_{i}"]
        maps, feed_forward = q["attention"], q["feed_forward"]
        query, key, value = (lin(maps[name], tokens) for name in ("query", "key", "value"))
        mixed = np.zeros_like(tokens)
        for h in range(module.n_heads):
            part = slice(h * width, (h + 1) * width)
            scores = query[..., part] @ key[..., part].transpose(0, 2, 1) / np.sqrt(width)
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            mixed[..., part] = weights @ value[..., part]
        tokens = layer_norm(q["attention_norm"], tokens + lin(maps["output"], mixed))
        hidden = lin(feed_forward["expand"], tokens)
        hidden = lin(feed_forward["contract"], 0.5 * hidden * (1 + erf(hidden / 2**0.5)))
        tokens = layer_norm(q["output_norm"], tokens + hidden)
    return (lin(p["head"], layer_norm(p["norm"], tokens)) * std + mean).transpose(0, 2, 1)


def test_dlinear_equals_two_linear_maps_of_moving_average_and_remainder_in_numpy():
    v, x = initial(LINEAR, jax.random.key(0)), windows(LINEAR)
    v["params"] = shaken(LINEAR)["params"]
    expected = numpy_dlinear(np.full(25, 1 / 25), 0.0, v["params"], x)
    for train in (False, True):
        np.testing.assert_allclose(FAST(LINEAR, v, x, train=train)[0], expected, atol=1e-4)


def test_dlinear_with_the_learnable_kernel_changes_the_kernel_and_nothing_else():
    module = LINEAR.clone(ld_init="softmax_gauss")
    v, x = shaken(module), windows(module)
    split = v["params"]["decomposition"]
    expected = numpy_dlinear(split["kernel"], float(split["bias"]), v["params"], x)
    np.testing.assert_allclose(FAST(module, v, x)[0], expected, rtol=1e-4, atol=1e-4)
    fixed, free = (trees.size(initial(m, jax.random.key(0))["params"]) for m in (LINEAR, module))
    assert (fixed, free) == (2 * (30 * 7 + 7), 2 * (30 * 7 + 7) + 26)


def test_dlinear_starts_as_the_mean_of_the_window_at_every_step():
    v, x = initial(LINEAR, jax.random.key(0)), windows(LINEAR)
    for part in ("trend", "seasonal"):
        assert float(jnp.abs(v["params"][part]["bias"]).max()) <= 30**-0.5
        v["params"][part]["bias"] = jnp.zeros(7)
    forecast = FAST(LINEAR, v, x)[0]
    np.testing.assert_allclose(forecast, np.repeat(x.mean(1, keepdims=True), 7, 1), atol=1e-5)


def test_dlinear_is_affine_and_treats_each_series_alone():
    v, x, y = shaken(LINEAR), windows(LINEAR), windows(LINEAR, 2)

    def forecast(x: np.ndarray) -> np.ndarray:
        return np.asarray(FAST(LINEAR, v, x)[0])

    middle = 0.25 * forecast(x) + 0.75 * forecast(y)
    np.testing.assert_allclose(forecast(0.25 * x + 0.75 * y), middle, rtol=1e-4, atol=1e-4)
    mixed = x.copy()
    mixed[:, :, 1] = y[:, :, 1]
    expected = forecast(x).copy()
    expected[:, :, 1] = forecast(y)[:, :, 1]
    np.testing.assert_allclose(forecast(mixed), expected, rtol=1e-5, atol=1e-5)


def test_itransformer_equals_the_equations_in_numpy():
    v, x = shaken(INVERTED), windows(INVERTED)
    expected = numpy_itransformer(INVERTED, v["params"], x)
    np.testing.assert_allclose(FAST(INVERTED, v, x)[0], expected, rtol=2e-4, atol=2e-4)


def test_itransformer_commutes_with_any_order_of_the_series():
    v, x, order = shaken(INVERTED), windows(INVERTED), np.array([2, 0, 1])
    whole = FAST(INVERTED, v, x)[0]
    np.testing.assert_allclose(
        FAST(INVERTED, v, x[:, :, order])[0], whole[:, :, order], rtol=1e-5, atol=1e-5
    )


def test_itransformer_follows_scale_and_shift_of_each_series():
    v, x = shaken(INVERTED), windows(INVERTED)
    scale, shift = np.float32([[[0.5, 3, 20]]]), np.float32([[[-4, 0, 9]]])
    one, other = (np.asarray(FAST(INVERTED, v, part)[0]) for part in (x, x * scale + shift))
    size = np.abs(scale * (one - one.mean((0, 1), keepdims=True))).max((0, 1))
    assert (x.std(1) * scale[0]).min() > 0.1
    assert (np.abs(other - (scale * one + shift)).max((0, 1)) <= 1e-3 * size).all()


@pytest.mark.parametrize("n_series", [2, 7])
def test_itransformer_has_the_same_parameters_for_any_number_of_series(n_series):
    module = ITransformer(n_series, 96, 96, d_model=256, d_ff=256)
    shapes = jax.eval_shape(
        lambda key: variables.init(module, key, (1, 96, n_series)), jax.random.key(0)
    )
    d = 256
    layer = 4 * (d * d + d) + 2 * (d * d + d) + 2 * 2 * d
    assert trees.size(shapes["params"]) == 97 * d + 2 * layer + 2 * d + (d + 1) * 96


def test_itransformer_drops_out_by_key_in_training_only():
    v, x = shaken(INVERTED), windows(INVERTED)
    one, same, other = (
        FAST(INVERTED, v, x, train=True, key=jax.random.key(seed))[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert float(jnp.abs(one - other).max()) > 1e-3


def test_itransformer_shows_attention_of_every_head_that_sums_to_1():
    v, x = shaken(INVERTED), windows(INVERTED)
    sown = jax.jit(lambda v, x: variables.inspect(INVERTED, v, x))(v, x)
    weights = sown["layers_1"]["attention"]["weights"][0]
    assert weights.shape == (4, 4, 3, 3)
    np.testing.assert_allclose(weights.sum(-1), np.ones((4, 4, 3)), rtol=1e-5)


def test_impossible_sizes_are_refused_when_the_model_is_made():
    makers: list[tuple[type[nn.Module], dict, str]] = [
        (ITransformer, {"d_model": 250}, "d_model=250 must be a multiple of n_heads=8"),
        (ITransformer, {"dropout": -0.1}, "dropout=-0.1"),
        (DLinear, {"kernel_size": 4}, "kernel_size=4 must be odd"),
    ]
    for make, change, words in makers:
        with pytest.raises(UserError, match=words):
            make(3, 12, 7, **change)
