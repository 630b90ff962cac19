"""LSTM (Hochreiter & Schmidhuber 1997, gates as in PyTorch) against a numpy recurrence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.lstm import LSTM
from rflib.nn import variables
from tests.leddam import sequence_oracle as oracle

SMALL = LSTM(3, 9, 4, hidden=6)
DEEP = SMALL.clone(n_layers=2, dropout=0.4)
FAST = oracle.quick_jit(variables.apply, static_argnums=0, static_argnames="train")


def initial(module: LSTM) -> dict:
    """Random variables of the right shapes, without compiling the initialisers."""
    shapes = jax.eval_shape(
        lambda key: variables.init(module, key, (1, module.seq_len, module.n_series)),
        jax.random.key(0),
    )
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: jnp.asarray(rng.uniform(-0.5, 0.5, a.shape), a.dtype), shapes)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def wide(a: object) -> np.ndarray:
    return np.asarray(a, np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def numpy_lstm(module: LSTM, p: dict, x: np.ndarray) -> np.ndarray:
    """Row by row: one window, one step, one gate at a time."""
    result = []
    for rows in wide(x):
        for i in range(module.n_layers):
            q, states = p[f"layers_{i}"], []
            h = c = np.zeros(module.hidden)
            for row in rows:
                gates = wide(q["input_weight"]) @ row + wide(q["input_bias"])
                gates += wide(q["hidden_weight"]) @ h + wide(q["hidden_bias"])
                enter, forget, candidate, leave = gates.reshape(4, -1)
                c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(candidate)
                h = sigmoid(leave) * np.tanh(c)
                states.append(h)
            rows = states
        flat = wide(p["head"]["weight"]) @ h + wide(p["head"]["bias"])
        result.append(flat.reshape(module.pred_len, module.n_series))
    return np.stack(result)


@pytest.mark.parametrize("module", [SMALL, DEEP])
def test_lstm_equals_the_recurrence_in_numpy(module):
    v, x = initial(module), 2 * drawn(1, 5, 9, 3)
    expected = numpy_lstm(module, v["params"], x)
    np.testing.assert_allclose(FAST(module, v, x)[0], expected, rtol=1e-4, atol=1e-5)
    undropped = module.clone(dropout=0.0)
    np.testing.assert_allclose(FAST(undropped, v, x, train=True)[0], expected, rtol=1e-4, atol=1e-5)


def without_feedback(forget: float) -> dict:
    """Gates that the input does not move: all open but the forget gate, which is at `forget`."""
    v = initial(SMALL)
    layer = v["params"]["layers_0"]
    candidate = (np.arange(24) // 6 == 2).reshape(-1, 1)
    layer["input_weight"] = jnp.where(candidate, 0.3 * layer["input_weight"], 0.0)
    layer["hidden_weight"] = jnp.zeros((24, 6))
    layer["input_bias"] = jnp.repeat(jnp.array([40.0, forget, 0.0, 40.0]), 6)
    layer["hidden_bias"] = jnp.zeros(24)
    return v


def test_lstm_with_saturated_forget_gate_adds_up_the_past_in_any_order():
    v, x = without_feedback(40.0), drawn(2, 5, 9, 3)
    weight = wide(v["params"]["layers_0"]["input_weight"])[12:18]
    state = np.tanh(np.tanh(wide(x) @ weight.T).sum(1))
    expected = state @ wide(v["params"]["head"]["weight"]).T + wide(v["params"]["head"]["bias"])
    for order in (np.arange(9), np.random.default_rng(0).permutation(9)):
        result = np.asarray(FAST(SMALL, v, x[:, order])[0])
        np.testing.assert_allclose(result, expected.reshape(5, 4, 3), rtol=1e-4, atol=1e-5)


def test_lstm_with_closed_forget_gate_and_no_feedback_knows_the_last_step_only():
    v, x = without_feedback(-40.0), drawn(3, 5, 9, 3)
    other = x.copy()
    other[:, :-1] = drawn(4, 5, 8, 3)
    np.testing.assert_allclose(FAST(SMALL, v, x)[0], FAST(SMALL, v, other)[0], rtol=1e-5)
    other[:, -1] += 1
    assert float(jnp.abs(FAST(SMALL, v, x)[0] - FAST(SMALL, v, other)[0]).max()) > 1e-2


@pytest.mark.parametrize(("n_series", "hidden", "n_layers"), [(7, 128, 1), (7, 128, 2), (2, 5, 3)])
def test_lstm_has_its_number_of_parameters_in_closed_form_for_any_lookback(
    n_series, hidden, n_layers
):
    first = 4 * hidden * (n_series + hidden + 2)
    later = 4 * hidden * (hidden + hidden + 2)
    head = (hidden + 1) * 24 * n_series
    for seq_len in (1, 96):
        module = LSTM(n_series, seq_len, 24, hidden=hidden, n_layers=n_layers)
        assert trees.size(initial(module)["params"]) == first + (n_layers - 1) * later + head


def test_lstm_starts_with_pytorchs_uniform_law():
    module = LSTM(7, 3, 24, hidden=64)
    params = oracle.quick_jit(lambda key: variables.init(module, key, (1, 3, 7)))(
        jax.random.key(0)
    )["params"]
    for name, leaf in trees.named_leaves(params).items():
        assert 0.95 / 8 < float(jnp.abs(leaf).max()) <= 1 / 8, name
        if leaf.size > 1000:
            np.testing.assert_allclose(leaf.std(), 1 / 8 / 3**0.5, rtol=0.05, err_msg=name)


def test_lstm_gradient_reaches_every_parameter_and_equals_central_differences(float64):
    v = jax.tree.map(lambda a: a.astype(jnp.float64), initial(DEEP))
    x = jnp.asarray(drawn(5, 3, 9, 3), jnp.float64)

    @oracle.quick_jit
    @jax.value_and_grad
    def loss(params):
        return jnp.mean(jnp.square(variables.apply(DEEP, {**v, "params": params}, x)[0] - 1))

    _, gradient = loss(v["params"])
    for name, leaf in trees.named_leaves(gradient).items():
        assert (np.abs(leaf).max(tuple(range(1, leaf.ndim))) > 0).all(), name
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), v["params"])
    slope = sum(
        float(jnp.vdot(g, d))
        for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    ahead, behind = (
        float(loss(jax.tree.map(lambda p, d, s=s: p + s * d, v["params"], direction))[0])
        for s in (1e-5, -1e-5)
    )
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-6)


def test_lstm_drops_out_between_layers_in_training_only():
    x = drawn(6, 4, 9, 3)
    deep, flat = initial(DEEP), initial(SMALL)
    one, same, other = (
        FAST(DEEP, deep, x, train=True, key=oracle.fast_key(seed))[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert float(jnp.abs(one - other).max()) > 1e-4
    single = SMALL.clone(dropout=0.4)
    np.testing.assert_array_equal(
        FAST(single, flat, x, train=True, key=oracle.fast_key(1))[0], FAST(single, flat, x)[0]
    )


@pytest.mark.parametrize(("seq_len", "pred_len"), [(1, 1), (30, 11)])
def test_lstm_takes_any_lookback_and_horizon(seq_len, pred_len):
    module = LSTM(2, seq_len, pred_len, hidden=4)
    v, x = initial(module), drawn(7, 3, seq_len, 2)
    result = FAST(module, v, x)[0]
    assert result.shape == (3, pred_len, 2)
    np.testing.assert_allclose(result, numpy_lstm(module, v["params"], x), rtol=1e-4, atol=1e-6)


def test_lstm_refuses_impossible_sizes():
    with pytest.raises(UserError, match="hidden=0"):
        LSTM(3, 9, 4, hidden=0)
    with pytest.raises(UserError, match="dropout=1"):
        LSTM(3, 9, 4, dropout=1)
