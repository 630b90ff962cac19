"""The plug-in of a decomposition in front of a forecaster (Leddam, ICML 2024, section 4.4)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.baselines import DLinear
from rflib.methods.leddam.decomposition import kernel_mask
from rflib.methods.leddam.informer import Informer
from rflib.methods.leddam.lightts import LightTS
from rflib.methods.leddam.lstm import LSTM
from rflib.methods.leddam.model import Leddam
from rflib.methods.leddam.plugin import SPLITS, PlugIn
from rflib.methods.leddam.scinet import SCINet
from rflib.methods.leddam.transformer import Transformer
from rflib.nn import variables
from rflib.nn.linear import Linear

T, S, N = 20, 6, 3
FAST = jax.jit(variables.apply, static_argnums=0, static_argnames="train")


class Mixing(nn.Module):
    """A backbone that is neither linear nor blind to other series, and takes calendar marks."""

    n_series: int = N
    seq_len: int = T
    pred_len: int = S

    @nn.compact
    def __call__(self, x, train, marks=None):
        hidden = jnp.tanh(Linear(self.n_series * self.seq_len, 8)(x.reshape(x.shape[0], -1)))
        ahead = Linear(8, self.pred_len * self.n_series)(hidden)
        ahead = ahead.reshape(-1, self.pred_len, self.n_series)
        return ahead if marks is None else ahead + jnp.sum(marks, (1, 2), keepdims=True)


LD = PlugIn(Mixing(), kernel_size=5)


@functools.partial(jax.jit, static_argnums=0)
def initial(module: Any) -> dict:
    key = jax.random.key(0, impl="unsafe_rbg")  # compiles faster
    return variables.init(module, key, (1, module.seq_len, module.n_series))


def shaken(module: Any) -> dict:
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda a: a + jnp.asarray(0.2 * rng.random(a.shape), jnp.float32), initial(module)
    )


def windows(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(4, T, N)).cumsum(1).astype(np.float32)


def alone(values: dict) -> dict:
    return {"params": values["params"]["backbone"], "extra": {}}


def by_hand(kernel: Any, bias: Any, values: dict, x: np.ndarray) -> np.ndarray:
    """backbone(X - trend) + trend W + b with a loop over taps."""
    half = len(kernel) // 2
    place = [np.clip(np.arange(T) + i - half, 0, T - 1) for i in range(len(kernel))]
    trend = sum(float(w) * x[:, p] for w, p in zip(kernel, place, strict=True)) + float(bias)
    seasonal = FAST(LD.backbone, alone(values), jnp.asarray(x - trend, jnp.float32))[0]
    linear = values["params"]["trend"]
    ahead = np.einsum("btn,st->bsn", trend, linear["weight"]) + np.asarray(linear["bias"])[:, None]
    return np.asarray(seasonal) + ahead


@pytest.mark.parametrize("split", ["ld", "mov"])
def test_forecast_is_the_backbones_of_the_rest_plus_a_linear_map_of_the_trend(split):
    module, x = LD.clone(split=split), windows()
    values = shaken(module)
    if split == "mov":
        values["extra"] = initial(module)["extra"]
        kernel, bias = np.full(5, 0.2), 0.0
    else:
        kernel, bias = (values["params"]["decomposition"][n] for n in ("kernel", "bias"))
    expected = by_hand(kernel, bias, values, x)
    np.testing.assert_allclose(FAST(module, values, x)[0], expected, rtol=1e-4, atol=1e-5)


def test_with_a_kernel_of_zeros_it_is_the_bare_backbone_plus_the_bias_of_the_map():
    values, x = shaken(LD), windows()
    split = values["params"]["decomposition"]
    values["params"]["decomposition"] = jax.tree.map(jnp.zeros_like, split)
    bare = FAST(LD.backbone, alone(values), x)[0]
    expected = bare + values["params"]["trend"]["bias"].reshape(1, S, 1)
    np.testing.assert_allclose(FAST(LD, values, x)[0], expected, rtol=1e-6, atol=1e-6)


def test_raw_is_the_backbone_alone():
    module, x = LD.clone(split="raw"), windows()
    values = shaken(module)
    assert set(values["params"]) == {"backbone"}
    np.testing.assert_array_equal(
        FAST(module, values, x)[0], FAST(LD.backbone, alone(values), x)[0]
    )


def test_all_three_arms_start_from_the_same_backbone_and_the_two_splits_from_the_same_map():
    first = {split: initial(LD.clone(split=split))["params"] for split in SPLITS}
    digests = {trees.digest(params["backbone"]) for params in first.values()}
    assert len(digests) == 1
    assert trees.digest(first["ld"]["trend"]) == trees.digest(first["mov"]["trend"])
    np.testing.assert_allclose(first["ld"]["trend"]["weight"], 1 / T)
    assert 0 < float(jnp.abs(first["ld"]["trend"]["bias"]).max()) <= T**-0.5


def test_sizes_are_the_backbones_plus_map_and_trained_kernel():
    size = {s: trees.size(initial(LD.clone(split=s))["params"]) for s in SPLITS}
    linear = (T + 1) * S
    assert (size["mov"] - size["raw"], size["ld"] - size["raw"]) == (linear, linear + 6)
    assert (LD.n_series, LD.seq_len, LD.pred_len) == (N, T, S)


def gradients(module: PlugIn, values: dict, x: np.ndarray) -> dict:
    def loss(params):
        return jnp.mean(jnp.sin(variables.apply(module, {**values, "params": params}, x)[0]))

    return jax.jit(jax.grad(loss))(values["params"])


def test_kernel_and_backbone_learn_together_and_the_kernel_at_a_rate_of_its_own():
    values, x = shaken(LD), jnp.asarray(windows())
    slope = gradients(LD, values, x)
    assert all(np.abs(leaf).min() > 0 for leaf in jax.tree.leaves(slope))
    mask = trees.named_leaves(kernel_mask(values["params"]))
    chosen = {name for name, on in mask.items() if on}
    assert chosen == {"decomposition/kernel", "decomposition/bias"}
    slow = optax.chain(optax.sgd(1.0), optax.masked(optax.scale(0.1), kernel_mask))
    step = trees.named_leaves(slow.update(slope, slow.init(values["params"]))[0])
    for name, leaf in trees.named_leaves(slope).items():
        factor = 0.1 if name in chosen else 1.0
        np.testing.assert_allclose(step[name], -factor * leaf, rtol=1e-6)


def test_a_frozen_average_has_nothing_to_learn():
    module = LD.clone(split="mov")
    values = initial(module)
    assert not any(jax.tree.leaves(kernel_mask(values["params"])))
    np.testing.assert_allclose(values["extra"]["frozen"]["decomposition"]["kernel"], 0.2, rtol=1e-6)


def test_batch_statistics_of_the_backbone_are_kept_and_its_own_kernel_is_masked_too():
    inner = Leddam(N, T, S, d_model=16, period=8, kernel_size=3)
    module = PlugIn(inner, kernel_size=5)
    key = jax.random.key(0)
    shapes = jax.eval_shape(lambda: variables.init(module, key, (1, T, N)))
    assert set(shapes["extra"]["batch_stats"]) == {"backbone"}
    values = jax.tree.map(lambda a: jnp.full(a.shape, 0.1), shapes)
    extra = FAST(module, values, windows(), train=True)[1]
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), extra, values["extra"])
    assert min(jax.tree.leaves(moved)) > 0
    on = {n for n, leaf in trees.named_leaves(kernel_mask(shapes["params"])).items() if leaf}
    owners = ("decomposition", "backbone/decomposition")
    assert on == {f"{owner}/{leaf}" for owner in owners for leaf in ("kernel", "bias")}


@pytest.mark.parametrize(
    "make",
    [
        lambda: LightTS(N, T, S, d_model=16, chunk_size=5),
        lambda: SCINet(N, T, S, n_levels=2),
        lambda: LSTM(N, T, S, hidden=4),
        lambda: Transformer(N, T, S, d_model=8, d_ff=8, n_heads=2, label_len=4),
        lambda: Informer(N, T, S, d_model=8, d_ff=8, n_heads=2, label_len=4),
    ],
    ids=["LightTS", "SCINet", "LSTM", "Transformer", "Informer"],
)
def test_every_forecaster_of_the_study_can_be_plugged_in(make):
    module = PlugIn(make())
    key = jax.random.key(0)
    values = jax.eval_shape(lambda: variables.init(module, key, (1, T, N)))
    bare = jax.eval_shape(lambda: variables.init(module.backbone, key, (1, T, N)))
    assert trees.size(values["params"]) == trees.size(bare["params"]) + (T + 1) * S + 26
    x = jax.ShapeDtypeStruct((4, T, N), jnp.float32)
    ahead, extra = jax.eval_shape(
        lambda v, x: variables.apply(module, v, x, train=True, key=key), values, x
    )
    assert (ahead.shape, ahead.dtype) == ((4, S, N), jnp.float32)
    assert jax.tree.structure(extra) == jax.tree.structure(values["extra"])


def test_marks_reach_the_backbone():
    values, x = shaken(LD), jnp.asarray(windows())
    marks = jnp.ones((4, T + S, 2))
    call = jax.jit(lambda params, x, *marks: LD.apply({"params": params}, x, False, *marks))
    expected = FAST(LD, values, x)[0] + 2 * (T + S)
    np.testing.assert_allclose(call(values["params"], x, marks), expected, rtol=1e-5)


def test_trend_and_rest_are_sown_and_add_up_to_the_window():
    values, x = shaken(LD), windows()
    sown = jax.jit(lambda values, x: variables.inspect(LD, values, x))(values, x)
    assert set(sown) == {"trend_part", "seasonal_part"}
    total = sown["trend_part"][0] + sown["seasonal_part"][0]
    np.testing.assert_allclose(total, x.transpose(0, 2, 1), atol=1e-5)


def test_dlinear_with_the_kernel_in_its_place_starts_from_the_same_maps():
    fixed = DLinear(N, T, S, kernel_size=5)
    free = fixed.clone(ld_init="softmax_gauss")
    one, other = initial(fixed), initial(free)
    assert set(other["params"]) - set(one["params"]) == {"decomposition"}
    for name in ("trend", "seasonal"):
        assert trees.digest(one["params"][name]) == trees.digest(other["params"][name])
    kernel = one["extra"]["frozen"]["decomposition"]
    same = {"params": {**other["params"], "decomposition": kernel}, "extra": {}}
    x = windows()
    np.testing.assert_array_equal(FAST(fixed, one, x)[0], FAST(free, same, x)[0])


def test_unknown_splits_and_backbones_without_sizes_are_refused():
    with pytest.raises(UserError, match=r"split='sum'.*'raw', 'ld', 'mov'"):
        PlugIn(Mixing(), "sum")
    with pytest.raises(UserError, match="kernel_size=4 must be odd"):
        PlugIn(Mixing(), kernel_size=4)
    with pytest.raises(UserError, match="backbone=Dense has no field n_series"):
        PlugIn(nn.Dense(3))
