"""Transformer and Informer forward passes in float64 numpy, head by head and row by row."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf

from rflib.core import trees
from rflib.methods.leddam.transformer import Transformer
from rflib.nn import variables

# parameters, tokens [B, L, D], tokens attended to [B, M, D], heads, causal -> [B, L, D]
SelfAttention = Callable[[dict, np.ndarray, np.ndarray, int, bool], np.ndarray]
Between = Callable[[int, np.ndarray], np.ndarray]


def wide(a: object) -> np.ndarray:
    return np.asarray(a, np.float64)


def lin(p: dict, x: np.ndarray) -> np.ndarray:
    return x @ wide(p["weight"]).T + wide(p["bias"])


def layer_norm(p: dict, x: np.ndarray) -> np.ndarray:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * wide(p["scale"]) + wide(p["bias"])


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def attention_row(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One query [E] over keys and values [M, E]."""
    return softmax(keys @ query / np.sqrt(len(query))) @ values


def full_rows(query: np.ndarray, key: np.ndarray, value: np.ndarray, causal: bool) -> np.ndarray:
    """[L, E] of one head of one window."""
    rows = []
    for t, row in enumerate(query):
        seen = t + 1 if causal else len(key)
        rows.append(attention_row(row, key[:seen], value[:seen]))
    return np.stack(rows)


def attention(rows: Callable[..., np.ndarray] = full_rows) -> SelfAttention:
    """The projections around `rows`, which does one head of one window."""

    def attend(p: dict, x: np.ndarray, others: np.ndarray, heads: int, causal: bool) -> np.ndarray:
        query, key, value = (
            lin(p[name], tokens)
            for name, tokens in (("query", x), ("key", others), ("value", others))
        )
        width, mixed = x.shape[-1] // heads, np.zeros_like(x)
        for b in range(len(x)):
            for h in range(heads):
                part = slice(h * width, (h + 1) * width)
                mixed[b, :, part] = rows(
                    query[b, :, part], key[b, :, part], value[b, :, part], causal
                )
        return lin(p["output"], mixed)

    return attend


def circular_convolution(p: dict, x: np.ndarray) -> np.ndarray:
    taps = np.split(wide(p["weight"]), 3, axis=1)
    length = x.shape[1]
    rows = [
        sum(x[:, (t + i - 1) % length] @ tap.T for i, tap in enumerate(taps)) for t in range(length)
    ]
    return np.stack(rows, 1) + (wide(p["bias"]) if "bias" in p else 0)


def embedding(p: dict, x: np.ndarray, marks: np.ndarray | None) -> np.ndarray:
    tokens = circular_convolution(p["values"], x)
    width = tokens.shape[-1]
    for t in range(tokens.shape[1]):
        for d in range(width):
            angle = t / 10000 ** (2 * (d // 2) / width)
            tokens[:, t, d] += np.sin(angle) if d % 2 == 0 else np.cos(angle)
    return tokens if marks is None else tokens + wide(marks) @ wide(p["calendar"]).T


def feed_forward(p: dict, x: np.ndarray) -> np.ndarray:
    hidden = lin(p["expand"], x)
    return lin(p["contract"], 0.5 * hidden * (1 + erf(hidden / 2**0.5)))


def forecast(
    module: Transformer,
    p: dict,
    x: np.ndarray,
    marks: np.ndarray | None = None,
    self_attention: SelfAttention | None = None,
    between: Between = lambda number, tokens: tokens,
) -> np.ndarray:
    """[B, S, N]; `between` follows encoder layer `number` unless that is the last."""
    attend, heads, x = self_attention or attention(), module.n_heads, wide(x)
    length, known = x.shape[1], min(module.label_len, x.shape[1])
    tokens = embedding(p["encoder_embedding"], x, None if marks is None else marks[:, :length])
    for i in range(module.n_layers):
        q = p[f"encoder_{i}"]
        mixed = attend(q["attention"], tokens, tokens, heads, False)
        tokens = layer_norm(q["attention_norm"], tokens + mixed)
        tokens = layer_norm(q["output_norm"], tokens + feed_forward(q["feed_forward"], tokens))
        if i < module.n_layers - 1:
            tokens = between(i, tokens)
    encoded = layer_norm(p["encoder_norm"], tokens)
    start = np.zeros((len(x), known + module.pred_len, x.shape[2]))
    start[:, :known] = x[:, length - known :]
    future = None if marks is None else marks[:, length - known :]
    tokens = embedding(p["decoder_embedding"], start, future)
    for i in range(module.n_decoder_layers):
        q = p[f"decoder_{i}"]
        mixed = attend(q["attention"], tokens, tokens, heads, True)
        tokens = layer_norm(q["attention_norm"], tokens + mixed)
        mixed = attention()(q["cross"], tokens, encoded, heads, False)
        tokens = layer_norm(q["cross_norm"], tokens + mixed)
        tokens = layer_norm(q["output_norm"], tokens + feed_forward(q["feed_forward"], tokens))
    return lin(p["head"], layer_norm(p["decoder_norm"], tokens))[:, known:]


def parameter_count(
    n_series: int, d: int, d_ff: int, layers: int, decoders: int, marks: int, distillers: int = 0
) -> int:
    """Trainable numbers of Transformer, and of Informer with that many distillers."""
    attend, feed, norm = 4 * (d * d + d), d * d_ff + d_ff + d_ff * d + d, 2 * d
    embed = 2 * (3 * n_series * d + marks * d)
    encoder = layers * (attend + feed + 2 * norm) + norm
    decoder = decoders * (2 * attend + feed + 3 * norm) + norm
    distil = distillers * (3 * d * d + d + 2 * d)
    return embed + encoder + decoder + distil + d * n_series + n_series


# Programs that run once on small shapes: compiled in a fifth of the time, run slower.
quick_jit = functools.partial(
    jax.jit,
    compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
)


def fast_key(seed: int) -> jax.Array:
    """A random key whose draws compile at once; threefry's take seconds a model."""
    return jax.random.key(seed, impl="rbg")


def drawn_like(shapes: Any, seed: int = 0) -> Any:
    """Random variables of these shapes with positive scales and variances."""
    rng = np.random.default_rng(seed)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if trees.path_name(path).rsplit("/", 1)[-1] in ("scale", "var"):
            return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), leaf.dtype)
        bound = 1.0 if leaf.ndim == 1 else 2 * leaf.shape[-1] ** -0.5
        return jnp.asarray(rng.uniform(-bound, bound, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def drawn_variables(module: Transformer) -> dict:
    """Random variables of a forecaster; its initialisers are not compiled."""
    return drawn_like(
        jax.eval_shape(
            lambda key: variables.init(module, key, (2, module.seq_len, module.n_series)),
            jax.random.key(0),
        )
    )
