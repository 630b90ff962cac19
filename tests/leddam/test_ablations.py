"""The ablations of Leddam (ICML 2024, section 4) against the full model with a part silenced."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam import theory
from rflib.methods.leddam.ablations import ABLATIONS
from rflib.methods.leddam.attention import Block, TokenEncoder
from rflib.methods.leddam.model import Leddam
from rflib.nn import variables

FULL = Leddam(3, 12, 7, d_model=32, kernel_size=5, period=8)
FAST = jax.jit(variables.apply, static_argnums=0, static_argnames="train")
SIZES = {"n_series": 3, "seq_len": 12, "pred_len": 7, "d_model": 32, "kernel_size": 5}


@functools.cache
def shapes(module: Any) -> dict:
    x = (1, module.seq_len, module.n_series)
    return jax.eval_shape(lambda key: variables.init(module, key, x), jax.random.key(0))


def drawn(module: Any, seed: int = 0) -> dict:
    """Variables away from their initial values everywhere."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: (
            jnp.asarray(0.5 * rng.random(leaf.shape) + 0.1, jnp.float32)
            * (1 if leaf.ndim < 2 else rng.choice([-1.0, 1.0], leaf.shape).astype(np.float32))
        ),
        shapes(module),
    )


def restricted(module: Any, values: dict) -> dict:
    """Those of `values` that the module has."""
    names = traverse_util.flatten_dict(shapes(module), sep="/")
    flat = traverse_util.flatten_dict(values, sep="/")
    picked = traverse_util.unflatten_dict({name: flat[name] for name in names}, sep="/")
    return {"params": picked["params"], "extra": picked.get("extra", {})}


def silenced(values: dict, *words: str) -> dict:
    """The same with zeros in every parameter whose name begins with one of `words`."""

    def change(path: Any, leaf: jax.Array) -> jax.Array:
        name = trees.path_name(path).removeprefix("params/")
        return jnp.zeros_like(leaf) if name.startswith(words) else leaf

    return jax.tree_util.tree_map_with_path(change, values)


def windows(seed: int = 1, batch: int = 4, n_series: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, 12, n_series)).cumsum(1).astype(np.float32)


# What makes the part's output zero in the full model, and the parameters that the arm lacks.
SILENCED = {
    "no_auto": (("auto_0/layer_norm",), ("auto",)),
    "no_channel": (("channel_0/layer_norm",), ("channel",)),
    "no_res": (("residual_head",), ("residual_head", "auto", "channel")),
    "no_ld": (("decomposition", "main_head/bias"), ("decomposition", "main_head")),
    "no_pe": (("embedding/position",), ("embedding/position",)),
}


@pytest.mark.parametrize("name", SILENCED)
def test_an_arm_is_the_full_model_with_the_part_silenced_and_lacks_its_parameters(name):
    zeros, absent = SILENCED[name]
    module, values, x = FULL.clone(ablation=name), drawn(FULL), windows()
    full = FAST(FULL, silenced(values, *zeros), x)[0]
    np.testing.assert_allclose(
        FAST(module, restricted(module, values), x)[0], full, rtol=1e-4, atol=1e-4
    )
    assert float(jnp.abs(full - FAST(FULL, values, x)[0]).max()) > 0.05
    have, all_names = (trees.named_leaves(shapes(m)["params"]) for m in (module, FULL))
    assert set(all_names) - set(have) == {n for n in all_names if n.startswith(absent)}
    assert set(have) <= set(all_names)


def test_no_revin_is_what_the_full_model_does_between_its_two_normalisations():
    module, values, x = FULL.clone(ablation="no_revin"), drawn(FULL), windows()
    mean, std = x.mean(1, keepdims=True), np.sqrt(x.var(1, keepdims=True) + 1e-5)
    inside = FAST(module, values, (x - mean) / std)[0]
    np.testing.assert_allclose(FAST(FULL, values, x)[0], inside * std + mean, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(
        inside, FAST(FULL.clone(instance_norm=False), values, (x - mean) / std)[0]
    )


def test_mov_is_a_frozen_moving_average_whatever_the_kernel_would_be():
    module = FULL.clone(ablation="mov", ld_init="gauss", kernel_constraint="simplex")
    frozen = FULL.clone(ld_init="mov_frozen")
    assert module.split_init == "mov_frozen"
    assert "decomposition" not in shapes(module)["params"]
    start = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.3), shapes(module))
    bound = module.bind({"params": start["params"], "frozen": start["extra"]["frozen"]})
    np.testing.assert_allclose(bound.decomposition.kernel, 0.3)  # what is applied is the frozen one
    make = jax.jit(lambda key: variables.init(module, key, (1, 12, 3))["extra"]["frozen"])
    first = make(jax.random.key(0, impl="unsafe_rbg"))["decomposition"]
    np.testing.assert_allclose(first["kernel"], 0.2, rtol=1e-6)
    assert float(first["bias"]) == 0
    assert shapes(module) == shapes(frozen)


@pytest.mark.parametrize(("name", "length"), [("attn_point", 1), ("attn_patch", 16)])
def test_token_attention_stands_where_the_auto_regressive_blocks_were(name, length):
    module = FULL.clone(ablation=name, positions=True)
    two = shapes(module.clone(n_layers=2))["params"]
    assert [part for part in two if part.startswith("auto")] == ["auto_0"]
    values, x = drawn(module), windows()

    @jax.jit
    def forecast(values, x):
        collections = {"params": values["params"], **values["extra"]}
        return module.apply(collections, x, False, mutable=["intermediates"])

    @jax.jit
    def expected(values, sown):
        """[B, N, S], normalised: the two heads of the split embedding, put together by hand."""
        params, stats = values["params"], values["extra"]["batch_stats"]["channel_0"]
        main, residual = sown["main"][0], sown["residual"][0]
        inside = TokenEncoder(32, length, positions=True).apply(
            {"params": params["auto_0"]}, residual, False
        ) + Block("channel", 3, 32).apply(
            {"params": params["channel_0"], "batch_stats": stats}, residual, False
        )
        heads = [params[name]["weight"] for name in ("main_head", "residual_head")]
        return main @ heads[0].T + inside @ heads[1].T

    result, sown = forecast(values, jnp.asarray(x))
    inside = np.asarray(expected(values, sown["intermediates"])).transpose(0, 2, 1)
    for head in ("main_head", "residual_head"):
        inside = inside + np.asarray(values["params"][head]["bias"])[:, None]
    mean, std = x.mean(1, keepdims=True), np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(result, inside * std + mean, rtol=1e-3, atol=1e-2)


def count(module: Leddam, **more: Any) -> int:
    sizes = {k: v for k, v in SIZES.items() if k not in ("n_series", "seq_len", "pred_len")}
    given = {"n_layers": 1, "pe_type": module.pe_type, **sizes, **more}
    return theory.parameter_count(3, 12, 7, **given)


@pytest.mark.parametrize("name", ABLATIONS)
def test_parameters_of_each_arm_are_counted_by_the_closed_form(name):
    module = FULL.clone(ablation=name)
    assert trees.size(shapes(module)["params"]) == count(module, ablation=name)


def test_what_each_arm_saves_or_costs_in_parameters():
    full = count(FULL)
    block = 8 * 32**2 + 9 * 32 + 2 * 3
    saved = {name: full - count(FULL, ablation=name) for name in ABLATIONS}
    tokens = {m: (m + 1) * 64 + 8 * 64**2 + 11 * 64 + (32 // m * 64 + 1) * 32 for m in (1, 16)}
    assert saved == {
        "full": 0,
        "no_auto": block,
        "no_channel": block,
        "no_res": 2 * block + 33 * 7,
        "no_ld": 6 + 33 * 7,
        "mov": 6,
        "attn_point": block - tokens[1],
        "attn_patch": block - tokens[16],
        "no_revin": 0,
        "no_pe": 3 * 32,
    }


@pytest.mark.parametrize(
    ("constraint", "more", "per_series"),
    [
        ("none", (), False),
        ("none", (3, 9), True),
        ("simplex", (3, 9), False),
        ("symmetric", (), True),
        ("symmetric", (3, 9), True),
    ],
)
def test_parameters_with_other_kernels_or_none_a_series_are_counted_too(
    constraint, more, per_series
):
    options = {"kernel_constraint": constraint, "more_kernels": more, "per_series": per_series}
    module = FULL.clone(**options)
    assert trees.size(shapes(module)["params"]) == count(module, **options)


def test_flops_of_an_arm_are_those_of_its_products():
    def flops(name: str) -> float:
        return theory.training_flops(3, 12, 7, d_model=32, n_layers=2, ablation=name) / 6

    d = 32
    assert flops("full") - flops("no_auto") == 3 * 2 * 8 * d**2
    assert flops("full") - flops("no_channel") == 3 * 2 * 8 * d**2 + 2 * 2 * 9 * d
    assert flops("no_res") == 3 * (12 * d + d * 7)
    assert flops("full") - flops("no_ld") == 3 * d * 7
    patch = 16 * 64 * 2 + 2 * (8 * 64**2) + 2 * 2 * 2 * 64 + 2 * 64 * d
    assert flops("attn_patch") - flops("no_auto") == 3 * patch


@pytest.mark.parametrize(
    "change",
    [
        {"ablation": "no_res", "kernel_constraint": "symmetric", "more_kernels": (3, 9)},
        {"ablation": "attn_point", "remat": True, "positions": True},
        {"ablation": "attn_patch", "per_series": False, "kernel_constraint": "simplex"},
    ],
)
def test_every_parameter_of_an_arm_learns_but_the_biases_of_keys(change):
    module = FULL.clone(**change)
    values, x = drawn(module), jnp.asarray(windows(batch=6))

    @jax.jit
    def gradient(params):
        def loss(params):
            state = {**values, "params": params}
            forecast, changed = variables.apply(module, state, x, train=True)
            return jnp.mean(jnp.sin(forecast)), changed

        return jax.grad(loss, has_aux=True)(params)

    gradients, changed = gradient(values["params"])
    assert jax.tree.structure(changed) == jax.tree.structure(values["extra"])
    still = {
        name
        for name, leaf in trees.named_leaves(gradients).items()
        if not np.abs(leaf).max() > 1e-12
    }
    assert still == {n for n in trees.named_leaves(gradients) if n.endswith("key/bias")}


def test_without_parameters_a_series_any_number_of_series_is_forecast():
    module = FULL.clone(per_series=False)
    assert shapes(module) == shapes(module.clone(n_series=8))
    assert "batch_stats" not in shapes(module)["extra"]
    values, x = drawn(module), windows(n_series=5)
    order = np.array([3, 0, 4, 1, 2])
    whole = FAST(module, values, x)[0]
    assert whole.shape == (4, 7, 5)
    np.testing.assert_allclose(
        FAST(module, values, x[:, :, order])[0], whole[:, :, order], rtol=1e-4, atol=1e-4
    )
    # Without the branch over series each one is forecast alone, in training too.
    alone = module.clone(ablation="no_channel")
    values = restricted(alone, values)
    many = FAST(alone, values, x, train=True)[0]
    x[:, :, 3:] = 7.0
    changed = FAST(alone, values, x, train=True)[0]
    np.testing.assert_allclose(changed[:, :, :3], many[:, :, :3], rtol=1e-4, atol=1e-4)


def test_a_bank_of_kernels_is_folded_into_the_weights_like_one_kernel():
    module = FULL.clone(ablation="no_res", more_kernels=(3, 9), kernel_constraint="symmetric")
    values, x = drawn(module), windows()
    literal = FAST(module.clone(form="literal"), values, x)[0]
    np.testing.assert_allclose(FAST(module, values, x)[0], literal, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ablation": "no_atuo"}, r"ablation='no_atuo'.*did you mean 'no_auto'"),
        ({"ablation": "attn_patch", "d_model": 24}, r"d_model=24 must be a multiple of .*=16"),
        ({"kernel_constraint": "sum"}, r"kernel_constraint='sum'.*'simplex', 'symmetric'"),
        ({"more_kernels": (13, 48)}, "kernel_size=48 must be odd"),
    ],
)
def test_a_wrong_arm_or_kernel_is_refused_when_the_model_is_made(change, words):
    with pytest.raises(UserError, match=words):
        FULL.clone(**change)
