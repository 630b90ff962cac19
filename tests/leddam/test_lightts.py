"""LightTS (Zhang et al., arXiv 2207.01186) against an independent numpy forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.lightts import LightTS
from tests.leddam.forecasters import (
    FAST,
    initial,
    leaky,
    lin,
    shaken,
    shapes,
    silent_parameters,
    windows,
)

SMALL = LightTS(3, 12, 7, d_model=32, chunk_size=4)
RAGGED = LightTS(3, 13, 7, d_model=32, chunk_size=5)  # 13 = 5 + 5 + 3: two zeros at the end


def numpy_exchange(p: dict, x: np.ndarray) -> np.ndarray:
    """x: [in, nodes] -> [out, nodes], in the paper's layout."""
    inner = np.stack(
        [lin(p["contract"], leaky(lin(p["expand"], column))) for column in x.T], axis=1
    )
    inner = np.stack([row + lin(p["exchange"], row) for row in inner])
    return np.stack([lin(p["output"], column) for column in inner.T], axis=1)


def numpy_lightts(module: LightTS, p: dict, x: np.ndarray) -> np.ndarray:
    size = min(module.chunk_size, module.seq_len, module.pred_len)
    count = int(np.ceil(module.seq_len / size))
    result = np.empty((len(x), module.pred_len, module.n_series))
    for b, window in enumerate(x.astype(np.float64)):
        features = np.empty((module.d_model // 2, module.n_series))
        highway = np.empty((module.pred_len, module.n_series))
        for n in range(module.n_series):
            series = np.concatenate([window[:, n], np.zeros(size * count - module.seq_len)])
            continuous = np.stack([series[m * size : (m + 1) * size] for m in range(count)], 1)
            interval = np.stack([series[m::count] for m in range(count)], 1)
            one = lin(p["continuous_chunks"], numpy_exchange(p["continuous"], continuous))[:, 0]
            two = lin(p["interval_chunks"], numpy_exchange(p["interval"], interval))[:, 0]
            features[:, n] = np.concatenate([one, two])
            highway[:, n] = lin(p["highway"], window[:, n])
        result[b] = numpy_exchange(p["series"], features) + highway
    return result


@pytest.mark.parametrize(
    ("module", "train"),
    [(SMALL, False), (RAGGED, True), (LightTS(2, 50, 30, d_model=16), False)],
    ids=["even chunks", "padded", "chunks of 24"],
)
def test_lightts_equals_the_equations_in_numpy(module, train):
    v, x = shaken(module), windows(module)
    expected = numpy_lightts(module, v["params"], x)
    got = FAST(module, v, x, train=train)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("seq_len", "pred_len", "chunks"),
    [(96, 96, (24, 4)), (100, 96, (24, 5)), (96, 12, (12, 8)), (20, 96, (20, 1)), (23, 7, (7, 4))],
)
def test_lightts_cuts_chunks_of_24_or_of_the_whole_window_or_horizon(seq_len, pred_len, chunks):
    assert LightTS(2, seq_len, pred_len).chunks == chunks


def test_lightts_with_a_silent_last_block_is_its_highway_which_is_affine():
    v, x = shaken(RAGGED), windows(RAGGED)
    output = v["params"]["series"]["output"]
    v["params"]["series"]["output"] = jax.tree.map(jnp.zeros_like, output)
    expected = lin(v["params"]["highway"], x.astype(np.float64).transpose(0, 2, 1))
    np.testing.assert_allclose(
        FAST(RAGGED, v, x, train=True)[0], expected.transpose(0, 2, 1), atol=1e-4
    )


def test_lightts_mixes_series_in_the_last_exchange_only():
    v, x = shaken(SMALL), windows(SMALL)
    exchange = v["params"]["series"]["exchange"]
    mixed = x.copy()
    mixed[:, :, 1] = windows(SMALL, 2)[:, :, 1]

    def change() -> np.ndarray:
        return np.abs(FAST(SMALL, v, mixed)[0] - FAST(SMALL, v, x)[0]).max((0, 1))

    assert (change() > 1e-3).all()
    exchange["weight"] = jnp.diag(jnp.diag(exchange["weight"]))
    assert change()[1] > 1e-3
    np.testing.assert_array_equal(change()[[0, 2]], 0)


def test_lightts_commutes_with_an_order_of_series_when_the_exchange_is_permuted_too():
    v, x, order = shaken(SMALL), windows(SMALL), np.array([2, 0, 1])
    whole = np.asarray(FAST(SMALL, v, x)[0])
    exchange = v["params"]["series"]["exchange"]
    exchange["weight"] = exchange["weight"][order][:, order]
    exchange["bias"] = exchange["bias"][order]
    permuted = FAST(SMALL, v, x[:, :, order])[0]
    np.testing.assert_allclose(permuted, whole[:, :, order], rtol=1e-5, atol=1e-4)


def test_lightts_starts_every_exchange_as_the_identity_and_all_else_within_1_over_sqrt_fan_in():
    p = initial(SMALL)["params"]
    for name, nodes in (("continuous", 3), ("interval", 3), ("series", 3)):
        np.testing.assert_array_equal(p[name].pop("exchange")["weight"], np.eye(nodes))
    for layer in jax.tree.leaves(p, is_leaf=lambda node: "weight" in node):
        bound = layer["weight"].shape[1] ** -0.5
        assert 0.5 * bound < float(jnp.abs(layer["weight"]).max()) <= bound
        assert float(jnp.abs(layer["bias"]).max()) <= bound


@pytest.mark.parametrize(("seq_len", "d", "n"), [(96, 512, 7), (100, 128, 3)])
def test_lightts_has_the_parameters_of_its_formula(seq_len, d, n):
    def exchange(inner: int, hidden: int, outer: int, nodes: int) -> int:
        quarter = hidden // 4
        first = (inner + 1) * hidden + (hidden + 1) * quarter
        return first + (nodes + 1) * nodes + (quarter + 1) * outer

    count = -(-seq_len // 24)
    chunked = exchange(24, d // 4, d // 4, count) + count + 1
    expected = 2 * chunked + exchange(d // 2, d // 2, 96, n) + (seq_len + 1) * 96
    assert trees.size(shapes(LightTS(n, seq_len, 96, d_model=d))["params"]) == expected


def test_lightts_trains_every_parameter_and_traces_once():
    assert silent_parameters(RAGGED) == []


def test_lightts_refuses_impossible_sizes_when_it_is_made():
    for change, words in [
        ({"d_model": 40}, "d_model=40 must be a multiple of 16"),
        ({"chunk_size": 0}, "chunk_size=0"),
        ({"seq_len": -2}, "seq_len=-2"),
    ]:
        with pytest.raises(UserError, match=words):
            LightTS(**{"n_series": 3, "seq_len": 12, "pred_len": 7, **change})
