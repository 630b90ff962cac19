"""SCINet (Liu et al., NeurIPS 2022) against an independent recursive numpy forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.scinet import SCINet, interleave
from tests.leddam.forecasters import (
    FAST,
    dropout_is_drawn_by_key,
    follows_scale_and_shift,
    initial,
    leaky,
    shaken,
    shapes,
    silent_parameters,
    wide,
    windows,
)

SMALL = SCINet(3, 12, 5, n_levels=2)
RAGGED = SCINet(2, 11, 5, n_levels=3)  # 11 -> 6, 5 -> 3, 3, 3, 2 -> 2, 1, 2, 1, 2, 1, 1, 1


def numpy_convolution(weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x: [L, C] -> [L - K + 1, F], one output number at a time."""
    features, taps, _ = weight.shape
    y = np.empty((len(x) - taps + 1, features))
    for t in range(len(y)):
        for f in range(features):
            y[t, f] = bias[f] + sum(weight[f, k] @ x[t + k] for k in range(taps))
    return y


def numpy_module(p: dict, which: tuple[int, int], x: np.ndarray) -> np.ndarray:
    weight, bias = wide(p["first_weight"])[which], wide(p["first_bias"])[which]
    edge = weight.shape[1] - 1
    x = np.concatenate([np.repeat(x[:1], edge, 0), x, np.repeat(x[-1:], edge, 0)])
    x = leaky(numpy_convolution(weight, bias, x))
    second = wide(p["second_weight"])[which], wide(p["second_bias"])[which]
    return np.tanh(numpy_convolution(*second, x))


def numpy_tree(p: dict, x: np.ndarray, level: int, node: int, levels: int) -> np.ndarray:
    length = len(x)
    if length % 2:
        x = np.concatenate([x, x[-1:]])
    even, odd = x[::2], x[1::2]
    phi, psi, rho, eta = (
        lambda z, i=i: numpy_module(p[f"levels_{level}"], (node, i), z) for i in range(4)
    )
    scaled_even, scaled_odd = even * np.exp(phi(odd)), odd * np.exp(psi(even))
    even, odd = scaled_even + rho(scaled_odd), scaled_odd - eta(scaled_even)
    odd = odd[: length // 2]
    if level + 1 < levels:
        even = numpy_tree(p, even, level + 1, 2 * node, levels)
        odd = numpy_tree(p, odd, level + 1, 2 * node + 1, levels)
    result = np.empty((length, x.shape[1]))
    result[::2], result[1::2] = even, odd
    return result


def numpy_signal(length: int, width: int) -> np.ndarray:
    scales = (width + width % 2) // 2
    table = np.empty((length, 2 * scales))
    for i in range(scales):
        angle = np.arange(length) * np.exp(-i * np.log(10000) / max(scales - 1, 1))
        table[:, i], table[:, scales + i] = np.sin(angle), np.cos(angle)
    return table[:, :width]


def numpy_scinet(module: SCINet, p: dict, x: np.ndarray) -> np.ndarray:
    result = []
    for window in x.astype(np.float64):
        mean, std = window.mean(0), np.sqrt(window.var(0) + 1e-5)
        series = (window - mean) / std + numpy_signal(*window.shape)
        mixed = numpy_tree(p, series, 0, 0, module.n_levels) + series
        result.append(wide(p["projection"]) @ mixed * std + mean)
    return np.stack(result)


@pytest.mark.parametrize(
    ("module", "train"),
    [(SMALL, False), (RAGGED, True), (SCINet(1, 4, 3, n_levels=3, kernel_size=2), False)],
    ids=["even lengths", "odd lengths", "one step a leaf"],
)
def test_scinet_equals_the_equations_in_numpy(module, train):
    v, x = shaken(module), windows(module)
    expected = numpy_scinet(module, v["params"], x)
    got = FAST(module, v, x, train=train)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def silenced(v: dict) -> dict:
    """The same variables with φ = ψ = ρ = η = 0."""
    params = dict(v["params"])
    for name, level in v["params"].items():
        if name.startswith("levels"):
            off = {k: jnp.zeros_like(level[k]) for k in ("second_weight", "second_bias")}
            params[name] = {**level, **off}
    return {**v, "params": params}


@pytest.mark.parametrize("module", [SMALL, RAGGED], ids=["even lengths", "odd lengths"])
def test_scinet_with_silent_convolutions_projects_twice_the_window_and_its_positions(module):
    v, x = silenced(shaken(module)), windows(module)
    train = module is RAGGED  # the same either way; each is compiled for another test already
    mean, std = x.mean(1, keepdims=True), np.sqrt(x.var(1, keepdims=True) + 1e-5)
    series = (x - mean) / std + numpy_signal(module.seq_len, module.n_series)
    expected = np.einsum("st,btn->bsn", 2 * wide(v["params"]["projection"]), series) * std + mean
    np.testing.assert_allclose(FAST(module, v, x, train=train)[0], expected, rtol=1e-4, atol=1e-4)


def test_scinet_follows_scale_and_shift_of_each_series():
    assert follows_scale_and_shift(SMALL)
    assert not follows_scale_and_shift(SMALL.clone(instance_norm=False))


def test_scinet_mixes_the_series():
    v, x = shaken(SMALL), windows(SMALL)
    mixed = x.copy()
    mixed[:, :, 1] = windows(SMALL, 2)[:, :, 1]
    change = np.abs(FAST(SMALL, v, mixed)[0] - FAST(SMALL, v, x)[0]).max((0, 1))
    assert (change > 1e-3).all()


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_scinet_interleaves_what_even_and_odd_steps_were_cut_from(length):
    x = np.random.default_rng(0).normal(size=(2, length, 3)).astype(np.float32)
    np.testing.assert_array_equal(interleave(*map(jnp.asarray, (x[:, ::2], x[:, 1::2]))), x)


@pytest.mark.parametrize(("n", "seq_len", "levels", "taps"), [(7, 96, 4, 5), (2, 21, 3, 3)])
def test_scinet_has_the_parameters_of_its_formula_for_any_window(n, seq_len, levels, taps):
    module = SCINet(n, seq_len, 96, n_levels=levels, kernel_size=taps)
    convolutions = 2 * 4 * (2**levels - 1)
    expected = convolutions * (n * n * taps + n) + 96 * seq_len
    assert trees.size(shapes(module)["params"]) == expected


def test_scinet_starts_its_weights_within_1_over_sqrt_fan_in():
    p = initial(SMALL)["params"]
    assert 0.9 * 12**-0.5 < float(jnp.abs(p.pop("projection")).max()) <= 12**-0.5
    for leaf in jax.tree.leaves(p):
        assert 0.7 * 15**-0.5 < float(jnp.abs(leaf).max()) <= 15**-0.5


def test_scinet_trains_every_parameter_and_traces_once():
    assert silent_parameters(SCINet(2, 7, 5, n_levels=2)) == []  # 7 -> 4, 3 -> 2, 2, 2, 1


def test_scinet_drops_out_by_key_and_by_default_not_at_all():
    dropout_is_drawn_by_key(SMALL.clone(dropout=0.5))
    assert SMALL.dropout == 0  # so that the numpy pass also holds in training, without a key


def test_scinet_refuses_impossible_sizes_when_it_is_made():
    for change, words in [
        ({"seq_len": 7}, "seq_len=7 must be at least 2\\^\\(n_levels - 1\\) = 8"),
        ({"kernel_size": 0}, "kernel_size=0"),
        ({"dropout": -0.5}, "dropout=-0.5"),
    ]:
        with pytest.raises(UserError, match=words):
            SCINet(**{"n_series": 3, "seq_len": 12, "pred_len": 7, **change})
