"""Limit kernels of a wide network and of its input-Jacobian, exactly and fast.

Source: Kim and Yang (ICML 2024). With F(x) = (f(x), ∂f/∂x₁, …, ∂f/∂x_d), as hidden widths grow,
Cov(F(x), F(x')) tends to the Jacobian NNGP kernel and the inner products of the parameter gradients
of F(x) and F(x') to the Jacobian neural tangent kernel (JNTK). Both are blocks [1+d, 1+d]; the
first index derives in x, the second in x'. A block of x ≠ x' is not symmetric; B(x, x') is the
transpose of B(x', x). All kernels include κ².

Both scalar kernels depend on a = |x|², b = |x'|², c = x·x' only. A scan over layers therefore
carries the value and seven derivatives of either, from which every block follows by the chain rule:
B₀₀ = G; B_α0 = 2 G_a x_α + G_c x'_α; B_0β = 2 G_b x'_β + G_c x_β;
B_αβ = 4 G_ab x_α x'_β + 2 G_ac x_α x_β + 2 G_bc x'_α x'_β + G_cc x'_α x_β + G_c δ_αβ.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Float

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.duals import Dual
from rflib.methods.jacobian_ntk.network import Columns, Mlp, Rows, check

Blocks = Float[Array, "N M P P"]
KINDS = ("jntk", "jnngp", "ntk", "nngp")
COLLINEAR = 1e-12  # 1 - cos² below which ReLU sees two inputs as one
CHUNK_BYTES = 2**27  # of blocks assembled at once on the way to a Gram matrix


class Pairs(NamedTuple):
    """A scalar kernel of pairs, G(a, b, c) and its derivatives; arrays of equal shape [..., N, M].

    a = |x|², b = |x'|², c = x·x'; the second derivatives in a, a and in b, b occur in no block.
    """

    value: Array
    a: Array
    b: Array
    c: Array
    ab: Array
    ac: Array
    bc: Array
    cc: Array

    def plus(self, other: "Pairs", scale: Any = 1.0) -> "Pairs":
        """self + scale · other."""
        return Pairs(*(mine + scale * its for mine, its in zip(self, other, strict=True)))

    def times(self, other: "Pairs") -> "Pairs":
        """The product of two kernels, by the rule of Leibniz."""
        t, d = self, other
        return Pairs(
            value=t.value * d.value,
            a=t.a * d.value + t.value * d.a,
            b=t.b * d.value + t.value * d.b,
            c=t.c * d.value + t.value * d.c,
            ab=t.ab * d.value + t.a * d.b + t.b * d.a + t.value * d.ab,
            ac=t.ac * d.value + t.a * d.c + t.c * d.a + t.value * d.ac,
            bc=t.bc * d.value + t.b * d.c + t.c * d.b + t.value * d.bc,
            cc=t.cc * d.value + 2 * t.c * d.c + t.value * d.cc,
        )


class _Layer(NamedTuple):
    """What the scan carries: both diagonals [N, 1], [1, M] with their derivatives, both kernels."""

    A: Array
    A_a: Array
    B: Array
    B_b: Array
    sigma: Pairs
    theta: Pairs


def _after(outer: Sequence[Any], layer: _Layer) -> Pairs:
    """The chain rule for k(A, B, S) with outer = (k, k_A, k_B, k_S, k_AB, k_AS, k_BS, k_SS)."""
    k, k_a, k_b, k_s, k_ab, k_as, k_bs, k_ss = outer
    s, a, b = layer.sigma, layer.A_a, layer.B_b
    return Pairs(
        value=k,
        a=k_a * a + k_s * s.a,
        b=k_b * b + k_s * s.b,
        c=k_s * s.c,
        ab=k_ab * a * b + k_as * a * s.b + k_bs * b * s.a + k_ss * s.a * s.b + k_s * s.ab,
        ac=k_as * a * s.c + k_ss * s.a * s.c + k_s * s.ac,
        bc=k_bs * b * s.c + k_ss * s.b * s.c + k_s * s.bc,
        cc=k_ss * s.c * s.c + k_s * s.cc,
    )


def _step(net: Mlp, layer: _Layer, scale: Array, bias: Array) -> _Layer:
    """One hidden layer: Σ' = scale · k + bias, Θ' = Σ' + scale · Θ · ∂k/∂s."""
    dual = net.phi.dual
    k: Dual = dual(layer.A, layer.B, layer.sigma.value)
    sigma = _after((k.k, k.a, k.b, k.s, k.ss / 4, k.as_, k.bs, k.ss), layer)
    slope = _after((k.s, k.as_, k.bs, k.ss, k.sss / 4, k.ass, k.bss, k.sss), layer)
    sigma = Pairs(*(scale * each for each in sigma))
    sigma = sigma._replace(value=sigma.value + bias)
    theta = sigma.plus(layer.theta.times(slope), scale)
    left, right = (dual(each, each, each) for each in (layer.A, layer.B))
    return _Layer(
        scale * left.k + bias,
        scale * (left.a + left.b + left.s) * layer.A_a,
        scale * right.k + bias,
        scale * (right.a + right.b + right.s) * layer.B_b,
        sigma,
        theta,
    )


def _scales(net: Mlp, d: int, dtype: Any) -> tuple[Array, Array]:
    """σ² c² (the first without c²) and τ² of each of the depth + 1 layers."""
    weights = [scale**2 for scale in net.weight_scales(d)]
    weights = [weights[0], *(weight * net.gain**2 for weight in weights[1:])]
    biases = [scale**2 for scale in net.bias_scales()]
    return jnp.asarray(weights, dtype), jnp.asarray(biases, dtype)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _pairs(net: Mlp, x: Array, x2: Array, all_depths: bool) -> tuple[Pairs, Pairs]:
    scales, biases = _scales(net, x.shape[1], x.dtype)
    product = x @ x2.T
    a, b = jnp.sum(x * x, 1)[:, None], jnp.sum(x2 * x2, 1)[None, :]
    zero = jnp.zeros_like(product)
    start = Pairs(scales[0] * product + biases[0], zero, zero, scales[0] + zero, *[zero] * 4)
    layer = _Layer(
        scales[0] * a + biases[0],
        scales[0] * jnp.ones_like(a),
        scales[0] * b + biases[0],
        scales[0] * jnp.ones_like(b),
        start,
        start,
    )

    def step(layer: _Layer, scale: tuple[Array, Array]) -> tuple[_Layer, Any]:
        layer = _step(net, layer, *scale)
        return layer, (layer.sigma, layer.theta) if all_depths else None

    layer, depths = jax.lax.scan(step, layer, (scales[1:], biases[1:]))
    found = depths if all_depths else (layer.sigma, layer.theta)
    return jax.tree.map(lambda each: net.kappa**2 * each, found)


def pairs(net: Mlp, x: Rows, x2: Columns | None = None, *, all_depths: bool = False) -> Any:
    """The eight scalars of every pair, for the NNGP kernel and for the NTK: two `Pairs` [N, M].

    all_depths: every array has a leading axis [L], the kernels of depth 1 … L: a sweep over depths
    costs one compilation and one run.

    Raises:
        UserError: as `jacobian_ntk`.
    """
    x, x2 = as_inputs(net, x, x2, derivatives=True)
    return _pairs(net, x, x2, all_depths)


def _assemble(g: Pairs, x: Array, x2: Array) -> Float[Array, "N P M P"]:
    """All blocks of G, in the layout of a Gram matrix."""
    value, a, b, c, ab, ac, bc, cc = (each[:, None, :, None] for each in g)
    xa, xb = x[:, :, None, None], x[:, None, None, :]
    ya, yb = x2.T[None, :, :, None], x2[None, None, :, :]
    top = jnp.concatenate([value, 2 * b * yb + c * xb], 3)
    inner = xa * (4 * ab * yb + 2 * ac * xb) + ya * (2 * bc * yb + cc * xb)
    eye = jnp.eye(x.shape[1], dtype=x.dtype)[None, :, None, :]
    rest = jnp.concatenate([2 * a * xa + c * ya, inner + c * eye], 3)
    return jnp.concatenate([top, rest], 1)


@jax.jit
def _blocks(g: Pairs, x: Array, x2: Array) -> Blocks:
    return jnp.swapaxes(_assemble(g, x, x2), 1, 2)


def jacobian_nngp(net: Mlp, x: Rows, x2: Columns | None = None) -> Blocks:
    """κ² Σ(x, x'): the covariance of F(x) and F(x') at infinite width; as `jacobian_ntk`."""
    x, x2 = as_inputs(net, x, x2, derivatives=True)
    return _blocks(_pairs(net, x, x2, False)[0], x, x2)


def jacobian_ntk(net: Mlp, x: Rows, x2: Columns | None = None) -> Blocks:
    """κ² Θ(x, x'), the limit of the inner products of the parameter gradients of F(x) and F(x').

    Args:
        net: the network, e.g. `Mlp(depth=3, activation="erf")`.
        x, x2: inputs [N, d], [M, d] (default: x2 = x), any norm, zero included.

    Returns:
        [N, M, 1+d, 1+d], the first block index deriving in x. Precision is that of JAX: call it
        inside `jax.enable_x64(True)` for float64. It can be jitted and differentiated (smooth
        activations, three orders of the closed forms are there).

    Raises:
        UserError: a float64 NumPy array outside an `enable_x64` scope, which would be rounded;
            shapes that do not fit; ReLU at collinear inputs or at 0, where E[φ''φ''] is infinite
            (not seen when traced: the entries are then infinite or NaN).
    """
    x, x2 = as_inputs(net, x, x2, derivatives=True)
    return _blocks(_pairs(net, x, x2, False)[1], x, x2)


@functools.partial(jax.jit, static_argnums=0)
def _scalar(net: Mlp, x: Array, x2: Array) -> tuple[Array, Array]:
    scales, biases = _scales(net, x.shape[1], x.dtype)
    a = (scales[0] * jnp.sum(x * x, 1) + biases[0])[:, None]
    b = (scales[0] * jnp.sum(x2 * x2, 1) + biases[0])[None, :]
    start = scales[0] * (x @ x2.T) + biases[0]
    dual = net.phi.dual

    def step(state: tuple[Array, ...], each: tuple[Array, Array]) -> tuple[Any, None]:
        (a, b, sigma, theta), (scale, bias) = state, each
        k = dual(a, b, sigma)
        sigma = scale * k.k + bias
        theta = sigma + scale * theta * k.s
        return (scale * dual(a, a, a).k + bias, scale * dual(b, b, b).k + bias, sigma, theta), None

    (_, _, sigma, theta), _ = jax.lax.scan(step, (a, b, start, start), (scales[1:], biases[1:]))
    return net.kappa**2 * sigma, net.kappa**2 * theta


def nngp(net: Mlp, x: Rows, x2: Columns | None = None) -> Float[Array, "N M"]:
    """κ² Σ₀₀(x, x') [N, M]: the covariance of the outputs themselves. ReLU is legal, but at x = 0.

    For several outputs the kernel is this one times the identity over outputs.
    """
    return _scalar(net, *as_inputs(net, x, x2, derivatives=False))[0]


def ntk(net: Mlp, x: Rows, x2: Columns | None = None) -> Float[Array, "N M"]:
    """κ² Θ₀₀(x, x') [N, M]: the neural tangent kernel of the outputs. ReLU is legal, but at 0."""
    return _scalar(net, *as_inputs(net, x, x2, derivatives=False))[1]


def flatten(blocks: Any) -> Any:
    """Blocks [N, M, P, Q] as the matrix [N P, M Q], row i P + α: example-major."""
    n, m, p, q = blocks.shape
    return blocks.swapaxes(1, 2).reshape(n * p, m * q)


def component_major(n: int, d: int) -> np.ndarray:
    """The permutation of N (1+d) rows that puts all values first, then all ∂/∂x₁, and so on."""
    return np.arange(n * (1 + d)).reshape(n, 1 + d).T.ravel()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gram_rows(net: Mlp, kind: str, x: Array, x2: Array) -> Array:
    if kind in ("ntk", "nngp"):
        return _scalar(net, x, x2)[kind == "ntk"]
    return _flat(_pairs(net, x, x2, False)[kind == "jntk"], x, x2)


@jax.jit
def _flat(g: Pairs, x: Array, x2: Array) -> Array:
    n, m, p = len(x), len(x2), 1 + x.shape[1]
    return _assemble(g, x, x2).reshape(n * p, m * p)


def gram(
    net: Mlp,
    x: Rows,
    x2: Columns | None = None,
    *,
    kind: str = "jntk",
    chunk: int | None = None,
    dtype: Any = np.float64,
) -> np.ndarray:
    """A Gram matrix as a NumPy array, in double precision whatever JAX's setting.

    Args:
        net, x, x2: as `jacobian_ntk`.
        kind: "jntk" or "jnngp" [N (1+d), M (1+d)], row i (1+d) + α; "ntk" or "nngp" [N, M].
        chunk: rows of x at a time; default: so many that 128 MiB of blocks are made at once.
        dtype: np.float64, or np.float32 for a wholly single-precision recursion.

    Raises:
        UserError: as `jacobian_ntk`.
    """
    checks.one_of("kind", kind, KINDS)
    x2 = x if x2 is None else x2
    side = 1 + x.shape[1] if kind.startswith("j") else 1
    each = max(1, CHUNK_BYTES // (8 * side * side * max(len(x2), 1)))
    chunk = min(len(x), each if chunk is None else checks.positive_int("chunk", chunk))
    with jax.enable_x64(np.dtype(dtype) == np.float64):
        rows, columns = (np.asarray(part, dtype) for part in (x, x2))
        rows, columns = as_inputs(net, rows, columns, derivatives=kind.startswith("j"))
        out = np.empty((len(x) * side, len(x2) * side), dtype)
        for start in range(0, len(x), chunk):
            start = min(start, len(x) - chunk)  # the last chunk overlaps: one compilation
            part = _gram_rows(net, kind, rows[start : start + chunk], columns)
            out[start * side : (start + chunk) * side] = part
    return out


def sweep(
    net: Mlp,
    x: Rows,
    depths: Sequence[int],
    *,
    kind: str = "jntk",
    dtype: Any = np.float64,
) -> Iterator[tuple[int, np.ndarray]]:
    """(depth, Gram matrix of x) for each of `depths`, from one scan; one matrix at a time.

    `net.depth` is not used. Scales must be the same for all layers. `kind`, `dtype`: as `gram`.

    Raises:
        UserError: as `jacobian_ntk`; or σ, τ that are tuples.
    """
    checks.one_of("kind", kind, KINDS)
    depths = [checks.positive_int("depths", each) for each in checks.distinct("depths", depths)]
    if isinstance(net.sigma_w, tuple) or isinstance(net.sigma_b, tuple):
        raise UserError("a sweep over depths takes one sigma_w and one sigma_b for all layers")
    net = net._replace(depth=max(depths))
    with jax.enable_x64(np.dtype(dtype) == np.float64):
        rows, _ = as_inputs(net, np.asarray(x, dtype), None, derivatives=True)
        both = _pairs(net, rows, rows, True)
        states: Pairs = jax.tree.map(np.asarray, both[kind in ("jntk", "ntk")])
    for depth in depths:
        one = Pairs(*(each[depth - 1] for each in states))
        if not kind.startswith("j"):
            yield depth, np.asarray(one.value)
            continue
        with jax.enable_x64(np.dtype(dtype) == np.float64):
            found = np.asarray(_flat(Pairs(*map(jnp.asarray, one)), rows, rows))
        yield depth, found


def as_inputs(net: Mlp, x: Any, x2: Any, *, derivatives: bool) -> tuple[Array, Array]:
    """Both inputs as JAX arrays of one dtype, once they are what the kernels are made for."""
    check(net)
    x2 = x if x2 is None else x2
    if x.ndim != 2 or x2.ndim != 2 or x.shape[1] != x2.shape[1]:
        raise UserError(f"inputs are [N, d] and [M, d]: {list(x.shape)} and {list(x2.shape)}")
    for name, each in (("x", x), ("x2", x2)):
        double = isinstance(each, np.ndarray) and each.dtype == np.float64
        if double and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
            raise UserError(
                f"{name} is float64 and JAX in single precision: call inside "
                "`with jax.enable_x64(True):`, use `gram`, or pass float32"
            )
    if not net.phi.smooth and not any(isinstance(each, Tracer) for each in (x, x2)):
        _refuse_singular(net, np.asarray(x, float), np.asarray(x2, float), derivatives)
    dtype = jnp.result_type(x, x2, jnp.float32)
    return jnp.asarray(x, dtype), jnp.asarray(x2, dtype)


def _refuse_singular(net: Mlp, x: np.ndarray, x2: np.ndarray, derivatives: bool) -> None:
    weight, bias = net.weight_scales(x.shape[1])[0] ** 2, net.bias_scales()[0] ** 2
    a, b = (weight * (each**2).sum(1) + bias for each in (x, x2))
    if a.min(initial=np.inf) == 0 or b.min(initial=np.inf) == 0:
        raise UserError(f"{net.phi.name} kernels are singular at an input of 0 without biases")
    if not derivatives:
        return
    size = a[:, None] * b[None, :]
    i, j = np.nonzero(size - (weight * x @ x2.T + bias) ** 2 <= COLLINEAR * size)
    if i.size:
        raise UserError(
            f"activation={net.phi.name!r} has no Jacobian kernel at collinear inputs (rows "
            f"{i[0]} of x and {j[0]} of x2): E[φ''(u) φ''(u')] is infinite there, and a finite "
            "network's kernel grows with its width. Use a smooth activation such as 'gelu', "
            "or `ntk` and `nngp`, which need no second derivative"
        )
