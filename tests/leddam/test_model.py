"""The whole of Leddam (ICML 2024, section 3), against an independent numpy forward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import erf

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.losses import mse
from rflib.methods.leddam.model import Leddam
from rflib.nn import variables

SMALL = Leddam(3, 12, 7, d_model=16, kernel_size=5, period=4)
FAST = jax.jit(variables.apply, static_argnums=0, static_argnames="train")


@functools.partial(jax.jit, static_argnums=0)
def initial(module: Leddam, key: jax.Array) -> dict:
    return variables.init(module, key, (1, module.seq_len, module.n_series))


def shaken(module: Leddam, seed: int = 0) -> dict:
    """Variables off their initial values everywhere, running averages included."""
    start = initial(module, jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda a: jnp.asarray(np.asarray(a) + 0.2 * rng.random(a.shape), jnp.float32), start
    )


def windows(seed: int = 1, batch: int = 4, module: Leddam = SMALL) -> np.ndarray:
    rng = np.random.default_rng(seed)
    walk = rng.normal(size=(batch, module.seq_len, module.n_series)).cumsum(1)
    return (walk + 5 * rng.normal(size=(batch, 1, module.n_series))).astype(np.float32)


def lin(p: dict, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(p["weight"], np.float64).T + np.asarray(p["bias"], np.float64)


def soft(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def numpy_block(kind: str, p: dict, stats: dict, x: np.ndarray, train: bool, period: int):
    """R1 = BN(A(R) + R), R2 = LN(FFN(R1) + R1); the statistics of BN are over (batch, D)."""
    a, width = p["attention"], x.shape[-1]
    if kind == "auto":
        tokens = np.stack([np.roll(x, -j, -1) for j in range(0, width, period)], 2)
        scores = np.einsum("bnd,bnjd->bnj", lin(a["query"], x), lin(a["key"], tokens))
        mixed = np.einsum("bnj,bnjd->bnd", soft(scores / width**0.5), lin(a["value"], tokens))
    else:
        scores = lin(a["query"], x) @ lin(a["key"], x).transpose(0, 2, 1)
        mixed = soft(scores / width**0.5) @ lin(a["value"], x)
    x = x + lin(a["output"], mixed)
    norm, running = p["batch_norm"], stats["batch_norm"]
    mean = x.mean((0, 2)) if train else np.asarray(running["mean"], np.float64)
    var = x.var((0, 2)) if train else np.asarray(running["var"], np.float64)
    x = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5)
    x = x * np.asarray(norm["scale"])[:, None] + np.asarray(norm["bias"])[:, None]
    hidden = lin(p["expand"], x)
    x = x + lin(p["contract"], 0.5 * hidden * (1 + erf(hidden / 2**0.5)))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * np.asarray(p["layer_norm"]["scale"]) + np.asarray(p["layer_norm"]["bias"])


def numpy_decomposed(p: dict, x: np.ndarray) -> np.ndarray:
    kernel, half = np.asarray(p["kernel"], np.float64), len(p["kernel"]) // 2
    padded = np.concatenate([x[..., :1]] * half + [x] + [x[..., -1:]] * half, -1)
    parts = [w * padded[..., i : i + x.shape[-1]] for i, w in enumerate(kernel)]
    return sum(parts) + float(p["bias"])


def numpy_leddam(module: Leddam, v: dict, x: np.ndarray, train: bool) -> np.ndarray:
    p, stats = v["params"], v["extra"]["batch_stats"]
    x = x.astype(np.float64).transpose(0, 2, 1)
    mean, std = x.mean(-1, keepdims=True), np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = (x - mean) / std
    position = np.asarray(p["embedding"]["position"], np.float64)
    if module.decompose_on == "embedding":
        embedded = lin(p["embedding"]["linear"], x) + position
        main = numpy_decomposed(p["decomposition"], embedded)
        rest = embedded - main
    else:
        trend = numpy_decomposed(p["decomposition"], x)
        main = lin(p["embedding"]["linear"], trend) + position
        rest = lin(p["embedding"]["linear"], x - trend) + position
    branches = {"auto": rest, "channel": rest}
    for kind in branches:
        for i in range(module.n_layers):
            name = f"{kind}_{i}"
            branches[kind] = numpy_block(
                kind, p[name], stats[name], branches[kind], train, module.period
            )
    result = lin(p["main_head"], main) + lin(p["residual_head"], sum(branches.values()))
    return (result * std + mean).transpose(0, 2, 1)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("form", "decompose_on"),
    [("efficient", "embedding"), ("efficient", "series"), ("literal", "embedding")],
)
def test_forward_pass_equals_the_equations_in_numpy(form, decompose_on, train):
    module = SMALL.clone(form=form, decompose_on=decompose_on, n_layers=2)
    v, x = shaken(module), windows(batch=8)
    result, _ = FAST(module, v, x, train=train)
    expected = numpy_leddam(module, v, x, train)
    np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("change", [{"form": "literal"}, {"remat": True}])
def test_training_gradients_agree_between_forms_and_with_rematerialised_blocks(change):
    v, x, target = shaken(SMALL), jnp.asarray(windows(batch=8)), jnp.ones((8, 7, 3))

    def gradient(module: Leddam):
        def loss(params):
            forecast, extra = variables.apply(module, {**v, "params": params}, x, train=True)
            return jnp.mean(mse(forecast, target)), extra

        return jax.jit(jax.grad(loss, has_aux=True))(v["params"])

    (one, stats), (other, other_stats) = gradient(SMALL), gradient(SMALL.clone(**change))
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(one))
    for name, leaf in trees.named_leaves(one).items():
        np.testing.assert_allclose(
            trees.named_leaves(other)[name], leaf, rtol=1e-3, atol=1e-5 * scale, err_msg=name
        )
    for a, b in zip(jax.tree.leaves(stats), jax.tree.leaves(other_stats), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_permuting_series_together_with_their_own_parameters_permutes_the_forecast():
    v, x, order = shaken(SMALL), windows(), np.array([2, 0, 1])
    own = ("batch_norm", "embedding/position")  # a row or an entry a series

    def move(path: tuple, leaf: jax.Array) -> jax.Array:
        mine = any(word in trees.path_name(path) for word in own)
        return leaf[order] if mine else leaf

    moved = jax.tree_util.tree_map_with_path(move, v)
    stats = moved["extra"]["batch_stats"]["auto_0"]["batch_norm"]["mean"]
    assert float(jnp.abs(stats - v["extra"]["batch_stats"]["auto_0"]["batch_norm"]["mean"]).max())
    for train in (False, True):
        one, _ = FAST(SMALL, v, x, train=train)
        other, _ = FAST(SMALL, moved, x[:, :, order], train=train)
        np.testing.assert_allclose(other, one[:, :, order], rtol=1e-5, atol=1e-5)


def test_instance_norm_makes_the_forecast_follow_scale_and_shift_of_each_series():
    v, x = shaken(SMALL), windows()
    scale, shift = np.array([0.5, 3.0, 20.0], np.float32), np.array([-4.0, 0.0, 9.0], np.float32)
    one = np.asarray(FAST(SMALL, v, x)[0])
    other = np.asarray(FAST(SMALL, v, x * scale + shift)[0])
    assert (x.std(1) * scale).min() > 0.1
    size = np.abs(scale * (one - one.mean((0, 1), keepdims=True))).max((0, 1))
    error = np.abs(other - (scale * one + shift)).max((0, 1))
    assert (error <= 1e-3 * size).all()


def test_a_constant_window_has_a_finite_forecast_and_finite_gradients():
    v, x = shaken(SMALL), jnp.full((2, 12, 3), 7.0)

    @jax.jit
    def gradient(params):
        def total(params):
            forecast, _ = variables.apply(SMALL, {**v, "params": params}, x, train=True)
            return jnp.sum(forecast)

        return jax.value_and_grad(total)(params)

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(v["params"])))


def test_heads_start_as_the_mean_over_d_so_every_step_gets_the_same_forecast():
    x = windows()
    start = initial(SMALL, jax.random.key(0))
    for head in ("main_head", "residual_head"):
        start["params"][head]["bias"] = jnp.zeros(7)
    bare = SMALL.clone(instance_norm=False)
    forecast, _ = FAST(bare, start, x)
    np.testing.assert_allclose(forecast, np.repeat(forecast[:, :1], 7, 1), rtol=1e-5, atol=1e-6)
    blocks = {k: jnp.zeros_like(v) for k, v in start["params"]["residual_head"].items()}
    start["params"]["residual_head"] = blocks
    main = jax.jit(lambda v, x: variables.inspect(bare, v, x)["main"][0])(start, x)
    forecast, _ = FAST(bare, start, x)
    np.testing.assert_allclose(forecast[:, 0], main.mean(-1), rtol=1e-4, atol=1e-6)


def test_a_frozen_moving_average_is_no_parameter_and_forecasts_like_the_uniform_kernel():
    module, x = SMALL.clone(ld_init="mov_frozen"), windows()
    v, uniform = shaken(module), shaken(SMALL)
    assert "decomposition" not in v["params"]
    split = v["extra"].pop("frozen")["decomposition"]
    moved = {"params": {**v["params"], "decomposition": split}, "extra": v["extra"]}
    assert jax.tree.structure(moved) == jax.tree.structure(uniform)
    frozen = {**v, "extra": {**v["extra"], "frozen": {"decomposition": split}}}
    np.testing.assert_array_equal(FAST(module, frozen, x)[0], FAST(SMALL, moved, x)[0])


def test_kernel_gradient_equals_central_differences_in_double_precision(float64):
    module = Leddam(2, 10, 4, d_model=12, kernel_size=5, period=4)
    start = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), shaken(module))
    x = jnp.asarray(windows(3, 3, module), jnp.float64)
    target = jnp.asarray(np.random.default_rng(4).normal(size=(3, 4, 2)))

    def loss(params: dict) -> jax.Array:
        forecast, _ = variables.apply(module, {**start, "params": params}, x, train=True)
        return jnp.mean(mse(forecast, target))

    value, pulled = jax.jit(loss), jax.jit(jax.grad(loss))
    gradient = pulled(start["params"])["decomposition"]["kernel"]

    def at(i: int, change: float) -> float:
        kernel = start["params"]["decomposition"]["kernel"].at[i].add(change)
        split = {**start["params"]["decomposition"], "kernel": kernel}
        return float(value({**start["params"], "decomposition": split}))

    numeric = [(at(i, 1e-5) - at(i, -1e-5)) / 2e-5 for i in range(5)]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5)
    for head in ("main_head", "residual_head"):  # cut one: the kernel still learns from the other
        cut = {**start["params"], head: jax.tree.map(jnp.zeros_like, start["params"][head])}
        rest = pulled(cut)["decomposition"]["kernel"]
        assert float(jnp.abs(rest).min()) > 1e-6


def test_300_steps_overfit_one_batch_to_under_2_percent_of_its_first_error():
    module = Leddam(3, 48, 24, d_model=32, kernel_size=25, period=8)
    time = np.arange(48 + 24)[None, :, None] + 9.0 * np.arange(32)[:, None, None]
    wave = np.sin(2 * np.pi * time / np.array([24.0, 12.0, 17.0]))
    noise = 0.3 * np.random.default_rng(0).normal(size=wave.shape)
    x, y = jnp.split(jnp.asarray(wave + noise, jnp.float32), [48], axis=1)
    start, adam = initial(module, jax.random.key(0)), optax.adam(1e-3)

    @jax.jit
    def train(params, extra):
        def step(carry, _):
            params, extra, opt = carry

            def loss(params):
                both = {"params": params, "extra": extra}
                forecast, new = variables.apply(module, both, x, train=True)
                return jnp.mean(mse(forecast, y)), new

            (value, extra), gradient = jax.value_and_grad(loss, has_aux=True)(params)
            updates, opt = adam.update(gradient, opt)
            return (optax.apply_updates(params, updates), extra, opt), value

        return jax.lax.scan(step, (params, extra, adam.init(params)), None, 300)[1]

    values = train(start["params"], start["extra"])
    assert float(values[-1]) < 0.02 * float(values[0])


def test_inference_treats_each_window_alone_and_repeats_itself():
    module = SMALL.clone(dropout=0.5)
    v, x = shaken(module), windows()
    whole, extra = FAST(module, v, x)
    garbage = np.concatenate([x[:2], 1e3 * windows(9)[2:]])
    np.testing.assert_allclose(FAST(module, v, garbage)[0][:2], whole[:2], rtol=1e-5, atol=1e-5)
    for a, b in zip(jax.tree.leaves(extra), jax.tree.leaves(v["extra"]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_dropout_depends_on_the_key_alone_and_acts_in_training_only():
    module = SMALL.clone(dropout=0.5)
    v, x = shaken(module), windows()
    one = FAST(module, v, x, train=True, key=jax.random.key(1))[0]
    np.testing.assert_array_equal(one, FAST(module, v, x, train=True, key=jax.random.key(1))[0])
    assert float(jnp.abs(one - FAST(module, v, x, train=True, key=jax.random.key(2))[0]).max()) > 0
    np.testing.assert_array_equal(FAST(module, v, x)[0], FAST(SMALL, v, x)[0])


def test_what_is_sown_is_the_split_embedding_and_attention_rows_that_sum_to_1():
    v, x = shaken(SMALL), windows()
    sown = jax.jit(lambda v, x: variables.inspect(SMALL, v, x))(v, x)
    main, residual = sown["main"][0], sown["residual"][0]
    raw = x.astype(np.float64).transpose(0, 2, 1)
    normal = (raw - raw.mean(-1, keepdims=True)) / np.sqrt(raw.var(-1, keepdims=True) + 1e-5)
    embedded = lin(v["params"]["embedding"]["linear"], normal) + np.asarray(
        v["params"]["embedding"]["position"]
    )
    np.testing.assert_allclose(main + residual, embedded, atol=1e-5)
    for kind, width in (("channel", 3), ("auto", 4)):
        weights = sown[f"{kind}_0"]["attention"]["weights"][0]
        assert weights.shape == (4, 3, width)
        np.testing.assert_allclose(weights.sum(-1), np.ones((4, 3)), rtol=1e-5)


def test_bfloat16_parameters_give_a_float32_forecast_close_to_the_full_one():
    v, x = shaken(SMALL), windows()
    half = {**v, "params": trees.cast_floats(v["params"], jnp.bfloat16)}
    full, (low, extra) = FAST(SMALL, v, x)[0], FAST(SMALL, half, x, train=True)
    full = FAST(SMALL, v, x, train=True)[0]
    assert low.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(extra))
    error = float(jnp.abs(low - full).max() / jnp.abs(full).max())
    assert 0 < error < 0.03


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pe_type": "sincoss"}, r"pe_type='sincoss'.*did you mean 'sincos'"),
        ({"ld_init": "median"}, r"ld_init='median'.*'softmax_gauss'"),
        ({"kernel_size": 24}, "kernel_size=24 must be odd"),
        ({"decompose_on": "time"}, r"decompose_on='time'.*'embedding', 'series'"),
        ({"form": "quick"}, r"form='quick'.*'efficient', 'literal'"),
        ({"dropout": 1.0}, r"dropout=1.0 must lie in \[0, 1\)"),
        ({"n_layers": 0}, "n_layers=0"),
    ],
)
def test_a_wrong_choice_is_refused_when_the_model_is_made(change, words):
    with pytest.raises(UserError, match=words):
        Leddam(3, 12, 7, **change)
