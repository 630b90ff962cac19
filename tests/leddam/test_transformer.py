"""The forecasting Transformer (Vaswani et al., NeurIPS 2017; decoder of Zhou et al., AAAI 2021)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.transformer import (
    Attention,
    CircularConvolution,
    DecoderLayer,
    SequenceEmbedding,
    Transformer,
    decoder_input,
    sinusoid,
)
from rflib.nn import variables
from tests.leddam import sequence_oracle as oracle

SMALL = Transformer(3, 12, 5, 8, 12, n_heads=2, label_len=4)
MARKED = SMALL.clone(n_marks=4, n_decoder_layers=2)
FAST = oracle.quick_jit(variables.apply, static_argnums=0, static_argnames="train")


@oracle.quick_jit
def marked(v: dict, x: jax.Array, marks: jax.Array) -> jax.Array:
    return MARKED.apply({"params": v["params"]}, x, train=False, marks=marks)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def inferred() -> tuple[dict, np.ndarray, jax.Array, dict]:
    """Variables, windows, and what SMALL forecasts and shows of them."""
    v, x = oracle.drawn_variables(SMALL), drawn(1, 4, 12, 3)

    @oracle.quick_jit
    def run(v, x):
        return SMALL.apply({"params": v["params"]}, x, train=False, mutable=["intermediates"])

    forecast, sown = run(v, x)
    return v, x, forecast, sown["intermediates"]


def test_transformer_equals_the_equations_in_numpy():
    v, x, result, _ = inferred()
    expected = oracle.forecast(SMALL, v["params"], x)
    assert expected.std() > 0.1
    np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-4)


def test_transformer_with_calendar_and_two_decoder_layers_equals_the_equations_in_numpy():
    v, x, marks = oracle.drawn_variables(MARKED), drawn(1, 2, 12, 3), drawn(2, 2, 17, 4)
    expected = oracle.forecast(MARKED, v["params"], x, marks)
    np.testing.assert_allclose(marked(v, x, marks), expected, rtol=2e-4, atol=2e-4)


def test_forecast_of_a_step_depends_on_the_calendar_up_to_that_step_only():
    v, x, marks = oracle.drawn_variables(MARKED), drawn(1, 2, 12, 3), drawn(2, 2, 17, 4)
    before = np.asarray(marked(v, x, marks))
    for step in (1, 4):
        changed = marks.copy()
        changed[:, 12 + step :] += 1
        after = np.asarray(marked(v, x, changed))
        np.testing.assert_array_equal(after[:, :step], before[:, :step])
        assert np.abs(after[:, step:] - before[:, step:]).max((0, 2)).min() > 1e-3


def test_decoder_starts_from_the_last_known_values_and_zeros():
    x = jnp.asarray(drawn(3, 2, 6, 3))
    start = decoder_input(x, 4, 5)
    np.testing.assert_array_equal(start[:, :4], x[:, 2:])
    np.testing.assert_array_equal(start[:, 4:], np.zeros((2, 5, 3)))


def test_decoder_sees_no_later_token_and_all_encoded_ones():
    layer = DecoderLayer(lambda: Attention(4, 2, 0.0, causal=True), 4, 2, 6, 0.0)
    x, encoded = jnp.asarray(drawn(4, 1, 5, 4)), jnp.asarray(drawn(5, 1, 3, 4))
    params = oracle.drawn_like(
        jax.eval_shape(lambda: layer.init(jax.random.key(0), x, encoded, False))
    )

    @oracle.quick_jit
    def reach(x, encoded):  # |d output row i / d input row j|
        by_both = jax.jacobian(lambda x, e: layer.apply(params, x, e, False)[0], argnums=(0, 1))
        return tuple(jnp.abs(j[:, :, 0]).max((1, 3)) for j in by_both(x, encoded))

    by_token, by_encoded = map(np.asarray, reach(x, encoded))
    visible = np.tri(5, dtype=bool)
    np.testing.assert_array_equal(by_token[~visible], 0)
    assert by_token[visible].min() > 0
    assert by_encoded.min() > 0


@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_queries_is_the_mean_of_the_visible_values(causal):
    module = Attention(6, 3, 0.0, causal)
    query = jnp.zeros((2, 3, 5, 2))
    key, value = jnp.asarray(drawn(6, 2, 3, 5, 2)), jnp.asarray(drawn(7, 2, 3, 5, 2))
    mixed = module.apply({}, query, key, value, False, method="mix")
    whole = np.asarray(value).mean(2, keepdims=True)
    past = np.asarray(value).cumsum(2) / np.arange(1, 6)[:, None]
    expected = past if causal else np.broadcast_to(whole, past.shape)
    np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e-6)


def test_sinusoid_is_a_unit_circle_a_frequency_turned_by_each_step():
    for width in (8, 7):
        table = sinusoid(30, width)
        assert table.shape == (30, width)
        waves = table[:, 0 : width // 2 * 2 : 2] * 1j + table[:, 1::2]
        np.testing.assert_allclose(np.abs(waves), 1)
        turn = waves[1:] / waves[:-1]
        frequency = 10000.0 ** (-2 * np.arange(width // 2) / width)
        np.testing.assert_allclose(np.angle(turn), np.broadcast_to(frequency, turn.shape))


def test_circular_convolution_equals_numpy_and_follows_rolls_of_time():
    module = CircularConvolution(3, 5)
    params = {"weight": jnp.asarray(drawn(8, 5, 9)), "bias": jnp.asarray(drawn(9, 5))}
    x = jnp.asarray(drawn(10, 2, 7, 3))
    result = module.apply({"params": params}, x)
    np.testing.assert_allclose(result, oracle.circular_convolution(params, x), rtol=1e-4, atol=1e-5)
    rolled = module.apply({"params": params}, jnp.roll(x, 3, 1))
    np.testing.assert_allclose(rolled, jnp.roll(result, 3, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("n_series", "layers", "decoders", "marks"), [(7, 2, 1, 0), (7, 2, 1, 4), (21, 3, 2, 4)]
)
def test_transformer_has_its_number_of_parameters_in_closed_form(n_series, layers, decoders, marks):
    module = Transformer(
        n_series, 96, 192, n_layers=layers, n_decoder_layers=decoders, n_marks=marks
    )
    shapes = jax.eval_shape(
        lambda key: variables.init(module, key, (1, 96, n_series)), jax.random.key(0)
    )
    expected = oracle.parameter_count(n_series, 512, 2048, layers, decoders, marks)
    assert trees.size(shapes["params"]) == expected


def test_transformer_gradient_reaches_every_parameter_but_the_biases_of_keys():
    v, x, marks = oracle.drawn_variables(MARKED), drawn(1, 2, 12, 3), drawn(2, 2, 17, 4)

    @oracle.quick_jit
    @jax.grad
    def gradient(params, x, marks):
        forecast = MARKED.apply({"params": params}, x, train=False, marks=marks)
        return jnp.mean(jnp.square(forecast - 1))

    for name, leaf in trees.named_leaves(gradient(v["params"], x, marks)).items():
        reached = np.abs(leaf).max(tuple(range(1, leaf.ndim)))
        if name.endswith("key/bias"):  # adds the same to all scores of a query: softmax drops it
            assert reached.max() < 1e-6, name
        else:
            assert reached.min() > 1e-6, name


def test_embedding_starts_with_the_laws_of_the_published_code():
    module = SequenceEmbedding(3, 64, 4, 0.0)
    x, marks = jnp.zeros((1, 5, 3)), jnp.zeros((1, 5, 4))
    params = oracle.quick_jit(lambda key: module.init(key, x, marks, False))(oracle.fast_key(0))[
        "params"
    ]
    np.testing.assert_allclose(params["values"]["weight"].std(), (2 / 9) ** 0.5, rtol=0.1)
    np.testing.assert_allclose(params["calendar"].std(), 0.5 / 3**0.5, rtol=0.1)
    assert 0.45 < float(jnp.abs(params["calendar"]).max()) <= 0.5


def test_transformer_drops_out_by_key_in_training_only():
    module = SMALL.clone(n_layers=1)
    v, x = oracle.drawn_variables(module), drawn(1, 4, 12, 3)
    one, same, other = (
        FAST(module, v, x, train=True, key=oracle.fast_key(seed))[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert float(jnp.abs(one - other).max()) > 1e-3


def test_transformer_shows_attention_that_sums_to_1_and_sees_no_later_token():
    _, _, _, sown = inferred()
    past, whole = (sown["decoder_0"][name]["weights"][0] for name in ("attention", "cross"))
    assert (past.shape, whole.shape) == ((4, 2, 9, 9), (4, 2, 9, 12))
    for weights in (past, whole):
        np.testing.assert_allclose(weights.sum(-1), np.ones((4, 2, 9)), rtol=1e-5)
    np.testing.assert_array_equal(np.triu(np.asarray(past), 1), 0)


@pytest.mark.parametrize(("seq_len", "pred_len"), [(1, 20), (5, 1)])
def test_transformer_takes_any_lookback_and_horizon(seq_len, pred_len):
    module = Transformer(2, seq_len, pred_len, 4, 4, n_heads=1, n_layers=1)
    v, x = oracle.drawn_variables(module), drawn(1, 2, seq_len, 2)
    expected = oracle.forecast(module, v["params"], x)  # label_len 48 is more than the lookback
    np.testing.assert_allclose(FAST(module, v, x)[0], expected, rtol=2e-4, atol=2e-4)


def test_transformer_refuses_impossible_sizes_and_calendars():
    with pytest.raises(UserError, match="d_model=12 must be a multiple of n_heads=8"):
        Transformer(3, 12, 5, 12)
    with pytest.raises(UserError, match="label_len=0"):
        Transformer(3, 12, 5, label_len=0)
    v, x = oracle.drawn_variables(MARKED), jnp.zeros((2, 12, 3))
    with pytest.raises(UserError, match="n_marks=4, but no marks"):
        variables.apply(MARKED, v, x)
    with pytest.raises(UserError, match=r"marks \(2, 12, 4\) must be .* \(2, 17, 4\)"):
        marked(v, x, jnp.zeros((2, 12, 4)))
