"""Forecasts of an exported Leddam or DLinear with NumPy alone: this file needs nothing else.

    arrays = load("model.npz")
    ahead = numpy_forecast(arrays, x)    # x [T, N] or [B, T, N] in the units of the training file

The archive holds every weight, the columns in their order, the scaling of each, and, as JSON text
under the key "model", which of the model's parts there are.
"""

import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
FORMAT = 1
EPSILON = 1e-5  # in the square root of every normalisation


def load(path: Any) -> dict[str, np.ndarray]:
    """The arrays of an archive written by `export`; nothing is unpickled."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def description(arrays: Arrays) -> dict[str, Any]:
    """What the archive says of its model: kind, sizes, parts; ValueError if it is none."""
    if "model" not in arrays:
        raise ValueError("no exported model: there is no array 'model'")
    found = json.loads(str(arrays["model"]))
    if found.get("format") != FORMAT or found.get("kind") not in KINDS:
        raise ValueError(f"format {found.get('format')} of {found.get('kind')!r} is not known here")
    return found


def numpy_forecast(arrays: Arrays, x: Any) -> np.ndarray:
    """The next S rows [.., S, N] after x [.., T, N], both in the units of the training file.

    Series are in the order of `arrays["columns"]`. With quantiles it is their median.

    Raises:
        ValueError: x of another shape, or with values that are not finite.
    """
    return _physical(arrays, _point(arrays, _standardised(arrays, x)), np.ndim(x))


def numpy_quantiles(arrays: Arrays, x: Any) -> np.ndarray:
    """[.., S, N, Q] at the levels `arrays["quantiles/levels"]`, never decreasing over Q.

    Raises:
        ValueError: as `numpy_forecast`, or the model has no quantiles.
    """
    if "quantiles/levels" not in arrays:
        raise ValueError("the model was trained without quantiles")
    z = _standardised(arrays, x)
    levels = arrays["quantiles/levels"].tolist()
    middle, centre = _point(arrays, z), levels.index(0.5)
    parts = [middle]
    if len(levels) > 1:
        values, _, std = _normalised(z, True)
        raw = _linear(arrays, "quantiles", values).reshape(*std.shape[:2], -1, len(levels) - 1)
        gaps = np.logaddexp(0, raw) * np.sqrt(std**2 + arrays["quantiles/floor"] ** 2)[..., None]
        gaps = np.swapaxes(gaps, 1, 2)
        below = np.cumsum(gaps[..., :centre][..., ::-1], -1)
        above = np.cumsum(gaps[..., centre:], -1)
        parts = [middle - below[..., i] for i in reversed(range(below.shape[-1]))] + parts
        parts += [middle + above[..., i] for i in range(above.shape[-1])]
    return np.stack([_physical(arrays, part, np.ndim(x)) for part in parts], -1)


def _standardised(arrays: Arrays, x: Any) -> np.ndarray:
    about, values = description(arrays), np.asarray(x, np.float64)
    size = (about["seq_len"], about["n_series"])
    if values.ndim not in (2, 3) or values.shape[-2:] != size:
        raise ValueError(f"x has the shape {values.shape}; [{size[0]}, {size[1]}] is expected, or "
                         "a batch of it: rows of past by series")  # fmt: skip
    if not np.isfinite(values).all():
        raise ValueError("x has values that are missing or not finite")
    return (values.reshape(-1, *size) - arrays["mean"]) / arrays["scale"]


def _physical(arrays: Arrays, z: np.ndarray, rank: int) -> np.ndarray:
    values = z * arrays["scale"] + arrays["mean"]
    return values[0] if rank == 2 else values


def _point(arrays: Arrays, z: np.ndarray) -> np.ndarray:
    about = description(arrays)
    return KINDS[about["kind"]](arrays, about, z)


# The models, on standardised windows [B, T, N].


def _dlinear(arrays: Arrays, about: Mapping[str, Any], z: np.ndarray) -> np.ndarray:
    values = np.swapaxes(z, 1, 2)
    trend = _smooth(arrays, values)
    ahead = _linear(arrays, "trend", trend) + _linear(arrays, "seasonal", values - trend)
    return np.swapaxes(ahead, 1, 2)


def _leddam(arrays: Arrays, about: Mapping[str, Any], z: np.ndarray) -> np.ndarray:
    values, mean, std = _normalised(z, about["instance_norm"])
    if not about["main"]:
        main, residual = None, _embed(arrays, values)
    elif about["decompose_on"] == "embedding":
        embedded = _embed(arrays, values)
        main = _smooth(arrays, embedded)
        residual = embedded - main
    else:
        trend = _smooth(arrays, values)
        main, residual = _embed(arrays, trend), _embed(arrays, values - trend)
    ahead = 0.0 if main is None else _linear(arrays, "main_head", main)
    branches = []
    if about["intra"] in ("point", "patch"):
        branches.append(_token_encoder(arrays, about, "auto_0", residual))
    for kind in ("auto", "channel"):
        if about[kind]:
            branch = residual
            for layer in range(about["n_layers"]):
                branch = _block(arrays, about, f"{kind}_{layer}", branch, kind)
            branches.append(branch)
    if branches:
        ahead = ahead + _linear(arrays, "residual_head", functools.reduce(np.add, branches))
    return np.swapaxes(ahead * std + mean, 1, 2)


KINDS: dict[str, Callable[[Arrays, Mapping[str, Any], np.ndarray], np.ndarray]] = {
    "leddam": _leddam,
    "dlinear": _dlinear,
}


def _block(
    arrays: Arrays, about: Mapping[str, Any], name: str, x: np.ndarray, kind: str
) -> np.ndarray:
    """Attention, residual, norm, feed-forward, residual, LayerNorm."""
    positions = about["positions"] and kind == "auto"
    attend = _auto_attention if kind == "auto" else _self_attention
    x = attend(arrays, f"{name}/attention", x, about["period"], positions) + x
    if f"{name}/batch_norm/mean" in arrays:
        place = f"{name}/batch_norm"
        mean, var, scale, bias = (
            arrays[f"{place}/{each}"][:, None] for each in ("mean", "var", "scale", "bias")
        )
        x = (x - mean) / np.sqrt(var + EPSILON) * scale + bias
    else:
        x = _layer_norm(arrays, f"{name}/attention_norm", x)
    hidden = gelu(_linear(arrays, f"{name}/expand", x))
    return _layer_norm(
        arrays, f"{name}/layer_norm", _linear(arrays, f"{name}/contract", hidden) + x
    )


def _auto_attention(
    arrays: Arrays, name: str, x: np.ndarray, period: int, positions: bool
) -> np.ndarray:
    """Each row asks its copies, rolled left by j P along the embedding."""
    width = x.shape[-1]
    count = width // period if width % period == 0 else width // period + 1
    tokens = np.stack([np.roll(x, -j * period, -1) for j in range(count)], -2)
    if positions:
        tokens = tokens + _sinusoid(count, width)
    query = _linear(arrays, f"{name}/query", tokens[..., 0, :])
    key, value = (_linear(arrays, f"{name}/{each}", tokens) for each in ("key", "value"))
    weights = _softmax(np.einsum("...d,...jd->...j", query, key) / math.sqrt(width))
    return _linear(arrays, f"{name}/output", np.einsum("...j,...jd->...d", weights, value))


def _self_attention(
    arrays: Arrays, name: str, x: np.ndarray, period: int, positions: bool
) -> np.ndarray:
    """Self-attention over the second axis from the last; it has no period and no positions."""
    query, key, value = (_linear(arrays, f"{name}/{each}", x) for each in ("query", "key", "value"))
    weights = _softmax(query @ np.swapaxes(key, -1, -2) / math.sqrt(x.shape[-1]))
    return _linear(arrays, f"{name}/output", weights @ value)


def _token_encoder(
    arrays: Arrays, about: Mapping[str, Any], name: str, x: np.ndarray
) -> np.ndarray:
    length = about["token_length"]
    tokens = _linear(arrays, f"{name}/embed", x.reshape(-1, x.shape[-1] // length, length))
    if about["positions"]:
        tokens = tokens + _sinusoid(*tokens.shape[1:])
    tokens = _block(arrays, about, f"{name}/layer", tokens, "tokens")
    return _linear(arrays, f"{name}/project", tokens.reshape(*x.shape[:-1], -1))


# Layers.


def _normalised(z: np.ndarray, on: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(windows with the series in front of time, mean, std), each window and series by itself."""
    values = np.swapaxes(z, 1, 2)
    if not on:
        return values, np.zeros((*values.shape[:2], 1)), np.ones((*values.shape[:2], 1))
    mean = values.mean(-1, keepdims=True)
    std = np.sqrt(values.var(-1, keepdims=True) + EPSILON)
    return (values - mean) / std, mean, std


def _embed(arrays: Arrays, values: np.ndarray) -> np.ndarray:
    """Each series to the embedding's width; "rows" are its bias and the position of each series."""
    return values @ arrays["embedding/weight"].T + arrays["embedding/rows"]


def _linear(arrays: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    return x @ arrays[f"{name}/weight"].T + arrays[f"{name}/bias"]


def _smooth(arrays: Arrays, x: np.ndarray) -> np.ndarray:
    """c + Σ_i w_i x[clip(d + i - K//2)] along the last axis."""
    kernel, length = arrays["decomposition/kernel"], x.shape[-1]
    place = np.arange(length)
    parts = (
        weight * x[..., np.clip(place + i - len(kernel) // 2, 0, length - 1)]
        for i, weight in enumerate(kernel.astype(np.float64))
    )
    return sum(parts) + arrays["decomposition/bias"]


def _layer_norm(arrays: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
    return scaled * arrays[f"{name}/scale"] + arrays[f"{name}/bias"]


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _sinusoid(length: int, width: int) -> np.ndarray:
    angle = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    table = np.empty((length, width))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : width // 2]
    return table


def gelu(x: np.ndarray) -> np.ndarray:
    """x Φ(x)."""
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


# Chebyshev coefficients of ln(erfc(z) exp(z²) / t) in t = 1/(1 + z/2): Press et al., "Numerical
# Recipes", section 6.2.2; relative error of erfc below 1.2e-7 everywhere.
_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418,
         0.37409196, 1.00002368, -1.26551223)  # fmt: skip


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, to 1.2e-7; NumPy has none."""
    z = np.abs(x)
    t = 1 / (1 + 0.5 * z)
    tail = t * np.exp(-z * z + np.polyval(_ERFC, t))
    return np.where(x >= 0, 1 - tail, tail - 1)
