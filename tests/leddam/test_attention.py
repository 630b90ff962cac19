"""The dual attention of Leddam (ICML 2024, section 3.3), against loops over its equations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.special import erf

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.attention import (
    AutoAttention,
    Block,
    ChannelAttention,
    TokenEncoder,
    rolled_tokens,
    token_count,
)

D = 16
NAMES = ("query", "key", "value", "output")


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def projections(seed: int) -> dict:
    return {
        name: {"weight": drawn(seed + i, D, D) * 0.5, "bias": drawn(seed + 10 + i, D)}
        for i, name in enumerate(NAMES)
    }


@functools.partial(jax.jit, static_argnums=0)
def run(module: nn.Module, params: dict, x: np.ndarray) -> jax.Array:
    return module.apply({"params": params}, x)


def project(params: dict, name: str, row: np.ndarray) -> np.ndarray:
    return params[name]["weight"].astype(np.float64) @ row + params[name]["bias"]


def attend(params: dict, query: np.ndarray, tokens: list[np.ndarray]) -> np.ndarray:
    """One query over tokens by the definition: softmax of q·k / √D, then the output map."""
    scores = [project(params, "query", query) @ project(params, "key", t) for t in tokens]
    weights = np.exp(np.array(scores) / np.sqrt(D) - max(scores) / np.sqrt(D))
    weights /= weights.sum()
    mixed = sum(w * project(params, "value", t) for w, t in zip(weights, tokens, strict=True))
    return project(params, "output", mixed)


@pytest.mark.parametrize(
    ("width", "period", "count"),
    [(256, 64, 4), (512, 64, 8), (100, 64, 2), (64, 64, 1), (32, 64, 1), (16, 5, 4)],
)
def test_tokens_are_the_row_and_its_copies_rolled_left_by_multiples_of_the_period(
    width, period, count
):
    assert token_count(width, period) == count
    x = jnp.asarray(drawn(0, 3, width))
    tokens = rolled_tokens(x, period)
    assert tokens.shape == (3, count, width)
    for j in range(count):
        np.testing.assert_array_equal(tokens[:, j], jnp.roll(x, -j * period, axis=-1))


@pytest.mark.parametrize("form", ["efficient", "literal"])
@pytest.mark.parametrize("batch", [2, 8])  # 6 rows: thin products; 24 rows: folded weights
@pytest.mark.parametrize("period", [4, 5, 8])
def test_auto_attention_is_one_query_over_the_delayed_copies(form, batch, period):
    params, x = projections(1), drawn(2, batch, 3, D)
    result = run(AutoAttention(D, form, period=period), params, x)
    for b in range(batch):
        for n in range(3):
            row = x[b, n].astype(np.float64)
            tokens = [np.roll(row, -j * period) for j in range(token_count(D, period))]
            np.testing.assert_allclose(
                result[b, n], attend(params, row, tokens), rtol=1e-5, atol=3e-5
            )


@pytest.mark.parametrize("form", ["efficient", "literal"])
@pytest.mark.parametrize("batch", [2, 8])
def test_channel_attention_is_each_series_over_all_series(form, batch):
    params, x = projections(3), drawn(4, batch, 3, D)
    result = run(ChannelAttention(D, form), params, x)
    for b in range(batch):
        tokens = list(x[b].astype(np.float64))
        for n in range(3):
            np.testing.assert_allclose(
                result[b, n], attend(params, tokens[n], tokens), rtol=1e-5, atol=3e-5
            )


@pytest.mark.parametrize("form", ["efficient", "literal"])
@pytest.mark.parametrize("period", [16, 64])
def test_with_one_token_auto_attention_is_the_output_map_of_the_value_map(form, period):
    params, x = projections(5), drawn(6, 2, 3, D)
    result = run(AutoAttention(D, form, period=period), params, x)
    value = x @ params["value"]["weight"].T + params["value"]["bias"]
    expected = value @ params["output"]["weight"].T + params["output"]["bias"]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [AutoAttention, ChannelAttention])
def test_both_attentions_commute_with_a_permutation_of_the_series(kind):
    params, x = projections(7), drawn(8, 2, 5, D)
    order = np.array([4, 2, 0, 1, 3])
    whole = run(kind(D), params, x)
    moved = run(kind(D), params, x[:, order])
    np.testing.assert_allclose(moved, whole[:, order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [AutoAttention, ChannelAttention])
def test_efficient_gradients_equal_literal_ones_and_the_key_bias_gets_none(kind, float64):
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), projections(9))
    x = jnp.asarray(drawn(10, 8, 3, D), jnp.float64)
    options = {"period": 4} if kind is AutoAttention else {}

    def gradient(form: str) -> tuple:
        def value(params, x):
            return jnp.sum(jnp.sin(kind(D, form, **options).apply({"params": params}, x)))

        return jax.jit(jax.grad(value, (0, 1)))(params, x)

    efficient, literal = gradient("efficient"), gradient("literal")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9), *(efficient, literal)
    )
    np.testing.assert_array_equal(efficient[0]["key"]["bias"], np.zeros(D))


def test_the_efficient_auto_attention_never_holds_all_delayed_copies():
    x = jnp.zeros((64, 3, D))
    module = AutoAttention(D, "efficient", period=4)
    params = module.init(jax.random.key(0), x)

    def largest(module: AutoAttention) -> int:
        def value(params):
            return jnp.sum(module.apply(params, x))

        program = jax.jit(jax.grad(value)).lower(params).as_text()
        sizes = [line.split("tensor<")[1:] for line in program.splitlines()]
        shapes = [part.split("xf32")[0].split("x") for line in sizes for part in line]
        return max(int(np.prod([int(n) for n in s])) for s in shapes if all(map(str.isdigit, s)))

    assert largest(module) == x.size
    assert largest(module.clone(form="literal")) == 4 * x.size


@pytest.mark.parametrize("period", [4, 5])
def test_both_forms_show_their_weights_in_the_order_of_the_copies(period):
    """The outputs would not tell: where P divides D all rotations take part."""
    params, x = jax.tree.map(jnp.asarray, projections(11)), jnp.asarray(drawn(12, 2, 3, D))
    shown = [
        AutoAttention(D, form, period=period).apply({"params": params}, x, mutable="intermediates")
        for form in ("efficient", "literal")
    ]
    efficient, literal = (seen["intermediates"]["weights"][0] for _, seen in shown)
    np.testing.assert_allclose(efficient, literal, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("silent", "random"),
    [
        ((), True),
        (("contract",), True),  # what is left is behind the attention
        (("output",), True),  # what is left is inside the feed-forward
        (("contract", "output"), False),  # and there is no other place
    ],
)
def test_dropout_acts_behind_the_attention_and_inside_the_feed_forward(silent, random):
    block, x = Block("channel", 3, D, dropout=0.5), jnp.asarray(drawn(13, 4, 3, D))
    variables = block.init(jax.random.key(0), x, False)

    def mute(path: tuple, leaf: jax.Array) -> jax.Array:
        return leaf * 0 if {part.key for part in path} & set(silent) else leaf

    variables = jax.tree_util.tree_map_with_path(mute, variables)
    a, b = (
        block.apply(variables, x, True, rngs={"dropout": jax.random.key(seed)}, mutable=True)[0]
        for seed in (1, 2)
    )
    assert np.array_equal(a, b) is not random


def test_unknown_kinds_and_forms_are_refused_with_the_known_ones():
    x = jnp.zeros((1, 2, D))
    with pytest.raises(UserError, match=r"kind='series'.*'auto', 'channel'"):
        Block("series", 2, D).init(jax.random.key(0), x, False)
    with pytest.raises(UserError, match=r"form='fast'.*'efficient', 'literal'"):
        ChannelAttention(D, "fast").init(jax.random.key(0), x)


def wave(position: int, width: int) -> np.ndarray:
    """The fixed sinusoid: sin and cos of position / 10000^(2i/width), one number at a time."""
    angle = [position / 10000 ** ((k - k % 2) / width) for k in range(width)]
    return np.array([np.sin(a) if k % 2 == 0 else np.cos(a) for k, a in enumerate(angle)])


@pytest.mark.parametrize("form", ["efficient", "literal"])
@pytest.mark.parametrize("period", [4, 5])
def test_positions_are_added_to_the_delayed_copies_before_all_projections(form, period):
    params, x = projections(1), drawn(2, 8, 3, D)
    result = run(AutoAttention(D, form, period=period, positions=True), params, x)
    for b, n in [(0, 0), (3, 1), (7, 2)]:
        row = x[b, n].astype(np.float64)
        count = token_count(D, period)
        tokens = [np.roll(row, -j * period) + wave(j, D) for j in range(count)]
        expected = attend(params, tokens[0], tokens)
        np.testing.assert_allclose(result[b, n], expected, rtol=1e-5, atol=5e-5)


def normal_row(params: dict, x: np.ndarray) -> np.ndarray:
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return x * np.asarray(params["scale"]) + np.asarray(params["bias"])


def encode_by_hand(params: dict, row: np.ndarray, length: int, positions: bool) -> np.ndarray:
    """Attention over the pieces of one row, a token at a time."""
    pieces = [row[i : i + length] for i in range(0, len(row), length)]
    tokens = [project(params, "embed", piece) for piece in pieces]
    if positions:
        tokens = [token + wave(i, D) for i, token in enumerate(tokens)]
    layer, ends = params["layer"], []
    for token in tokens:
        mid = normal_row(layer["attention_norm"], token + attend(layer["attention"], token, tokens))
        hidden = project(layer, "expand", mid)
        hidden = project(layer, "contract", 0.5 * hidden * (1 + erf(hidden / np.sqrt(2))))
        ends.append(normal_row(layer["layer_norm"], mid + hidden))
    return project(params, "project", np.concatenate(ends))


@pytest.mark.parametrize("form", ["efficient", "literal"])
@pytest.mark.parametrize(("length", "positions"), [(1, False), (1, True), (4, True)])
def test_token_encoder_attends_over_the_pieces_of_each_row(length, positions, form):
    module = TokenEncoder(8, length, form=form, positions=positions, width=D)
    x = jnp.asarray(drawn(20, 2, 3, 8))
    rng = np.random.default_rng(21)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, False))["params"]
    params = jax.tree.map(lambda a: (0.3 * rng.normal(size=a.shape)).astype(np.float32), shapes)
    result = jax.jit(module.apply, static_argnums=2)({"params": params}, x, False)
    for b, n in np.ndindex(2, 3):
        expected = encode_by_hand(params, np.asarray(x[b, n], np.float64), length, positions)
        np.testing.assert_allclose(result[b, n], expected, rtol=1e-4, atol=5e-5)


def test_a_token_encoder_cuts_rows_into_equal_pieces_only():
    with pytest.raises(UserError, match=r"d_model=8 must be a multiple of .*=3"):
        TokenEncoder(8, 3).init(jax.random.key(0), jnp.zeros((1, 2, 8)), False)


def test_a_block_with_layer_norm_treats_rows_alike_and_has_no_parameter_a_series():
    block = Block("auto", 3, D, period=4, norm="layer")
    shapes = jax.eval_shape(lambda: block.init(jax.random.key(0), jnp.zeros((1, 3, D)), False))
    assert set(shapes) == {"params"}
    assert trees.size(shapes["params"]) == (4 * D * D + 4 * D) + 4 * D + (4 * D * D + 3 * D)
    with pytest.raises(UserError, match=r"norm='group'.*'batch', 'layer'"):
        Block("auto", 3, D, norm="group").init(jax.random.key(0), jnp.zeros((1, 3, D)), False)
