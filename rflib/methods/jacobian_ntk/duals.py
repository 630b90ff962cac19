"""Dual functions of activations: Gaussian expectations E[φ⁽ⁱ⁾(u) φ⁽ʲ⁾(v)], in closed form or not.

Source: Kim and Yang, "An Infinite-Width Analysis on the Jacobian-Regularised Training of a Neural
Network" (ICML 2024), whose kernels need them up to fourth order. (u, v) ~ N(0, [[a, s], [s, b]]).

Everything follows from k(a, b, s) = E[φ(u) φ(v)] by Price's theorem, ∂k/∂s = E[φ'(u) φ'(v)] and
∂k/∂a = E[φ''(u) φ(v)] / 2. It also says that ∂²k/∂a∂b = (∂²k/∂s²) / 4, so that ten functions are
enough where twelve derivatives occur. Closed forms are derived by hand: nested automatic
differentiation gives the same numbers and takes far longer to compile.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rflib.core.checks import choose, positive_int
from rflib.core.errors import UserError

Scalars = Any  # an array or a float; shapes broadcast at equal rank
FLOOR = 1e-12  # added to variances before the square root of a quadrature


class Dual(NamedTuple):
    """k(a, b, s) = E[φ(u) φ(v)] and its derivatives in the variances a, b and the covariance s.

    Further: ∂a∂b k = ss / 4 and ∂a∂b∂s k = sss / 4, by Price's theorem.
    """

    k: Array  # E[φ φ]
    a: Array  # E[φ'' φ] / 2
    b: Array  # E[φ φ''] / 2
    s: Array  # E[φ' φ']
    as_: Array  # E[φ''' φ'] / 2
    bs: Array  # E[φ' φ'''] / 2
    ss: Array  # E[φ'' φ'']
    ass: Array  # E[φ'''' φ''] / 2
    bss: Array  # E[φ'' φ''''] / 2
    sss: Array  # E[φ''' φ''']

    def scaled(self, factor: Scalars) -> "Dual":
        """All ten times `factor`."""
        return Dual(*(factor * entry for entry in self))


class Activation(NamedTuple):
    """An activation: φ itself (elementwise, any shape), its duals, and whether φ'' is a function.

    smooth: False for ReLU, whose φ'' is a point mass: E[φ'' φ''] is infinite at collinear inputs.
    """

    name: str
    phi: Callable[[Array], Array]
    dual: Callable[[Scalars, Scalars, Scalars], Dual]
    smooth: bool = True


def _erf(a: Scalars, b: Scalars, s: Scalars) -> Dual:
    """k = (2/π) arcsin(2s / √((1+2a)(1+2b))); with Q = (1+2a)(1+2b) − 4s², ∂k/∂s = (4/π) Q^(-1/2).

    The argument of arcsin stays below 1: nothing is clipped, which would kill its derivatives.
    """
    p, q = 1 + 2 * a, 1 + 2 * b
    det = p * q - 4 * s * s
    r, c = jax.lax.rsqrt(det), 4 / np.pi
    r3, r5 = r**3, r**5
    return Dual(
        k=c / 2 * jnp.arcsin(2 * s * jax.lax.rsqrt(p * q)),
        a=-c * s * r / p,
        b=-c * s * r / q,
        s=c * r,
        as_=-c * q * r3,
        bs=-c * p * r3,
        ss=4 * c * s * r3,
        ass=-12 * c * q * s * r5,
        bss=-12 * c * p * s * r5,
        sss=4 * c * (r3 + 12 * s * s * r5),
    )


def _gelu(a: Scalars, b: Scalars, s: Scalars) -> Dual:
    """φ(x) = x Φ(x), Φ the exact Gaussian distribution function.

    With p = 1+a, q = 1+b, D = pq − s²,
    2π k = s (π/2 + arcsin(s/√(pq))) + D^(-1/2) + D^(1/2) (1 − 1/p − 1/q).
    """
    p, q = 1 + a, 1 + b
    det = p * q - s * s
    r, c = jax.lax.rsqrt(det), 1 / (2 * np.pi)
    r3, r5, r7 = r**3, r**5, r**7
    angle = np.pi / 2 + jnp.arcsin(s * jax.lax.rsqrt(p * q))
    inverse, total = 1 / p + 1 / q, 1 + p + q

    def in_a(p: Scalars, q: Scalars) -> Array:
        return r * (det / (2 * p) + det / (p * p) - q / (2 * p) - 0.5) - q * r3 / 2

    def in_as(p: Scalars, q: Scalars) -> Array:
        return -s * (r / (2 * p) + 1.5 * q * r5 + q * r3 * inverse / 2 + r / (p * p))

    def in_ass(q: Scalars) -> Array:
        return r3 * (1 - q / 2) - 1.5 * q * total * r5 - 7.5 * s * s * q * r7

    return Dual(
        k=s * angle + r + det * r * (1 - inverse),
        a=in_a(p, q),
        b=in_a(q, p),
        s=angle + s * (r3 + r * inverse),
        as_=in_as(p, q),
        bs=in_as(q, p),
        ss=r + total * r3 + 3 * s * s * r5,
        ass=in_ass(q),
        bss=in_ass(p),
        sss=s * (r3 + (3 * total + 6) * r5 + 15 * s * s * r7),
    ).scaled(c)


def _relu(a: Scalars, b: Scalars, s: Scalars) -> Dual:
    """2π k = √Q + s (π − arccos(s/√(ab))), Q = ab − s² (the arc-cosine kernel of Cho and Saul).

    k, its derivatives in a, b, and ∂k/∂s are finite at Q = 0, the others are not. a, b > 0.
    """
    gap = jnp.maximum(a * b - s * s, 0)
    root, c = jnp.sqrt(gap), 1 / (2 * np.pi)
    r = 1 / root
    angle = np.pi - jnp.arccos(jnp.clip(s * jax.lax.rsqrt(a * b), -1, 1))
    return Dual(
        k=root + s * angle,
        a=root / (2 * a),
        b=root / (2 * b),
        s=angle,
        as_=-s * r / (2 * a),
        bs=-s * r / (2 * b),
        ss=r,
        ass=-b * r**3 / 2,
        bss=-a * r**3 / 2,
        sss=s * r**3,
    ).scaled(c)


def _identity(a: Scalars, b: Scalars, s: Scalars) -> Dual:
    zero = jnp.zeros_like(a * b * s)
    return Dual(s + zero, zero, zero, 1 + zero, zero, zero, zero, zero, zero, zero)


def _waves(even: bool) -> Callable[[Scalars, Scalars, Scalars], Dual]:
    def dual(a: Scalars, b: Scalars, s: Scalars) -> Dual:
        """sin: exp(−(a+b)/2) sinh s; cos: the same with cosh; φ'' = −φ gives the rest."""
        level = jnp.exp(-(a + b) / 2)
        k, slope = level * jnp.sinh(s), level * jnp.cosh(s)
        if even:
            k, slope = slope, k
        return Dual(k, -k / 2, -k / 2, slope, -slope / 2, -slope / 2, k, -k / 2, -k / 2, slope)

    return dual


def _gaussian(a: Scalars, b: Scalars, s: Scalars) -> Dual:
    """φ(x) = exp(−x²/2): k = D^(-1/2), D = (1+a)(1+b) − s²."""
    p, q = 1 + a, 1 + b
    r = jax.lax.rsqrt(p * q - s * s)
    r3, r5, r7 = r**3, r**5, r**7
    return Dual(
        k=r,
        a=-q * r3 / 2,
        b=-p * r3 / 2,
        s=s * r3,
        as_=-1.5 * q * s * r5,
        bs=-1.5 * p * s * r5,
        ss=r3 + 3 * s * s * r5,
        ass=-1.5 * q * (r5 + 5 * s * s * r7),
        bss=-1.5 * p * (r5 + 5 * s * s * r7),
        sss=s * (9 * r5 + 15 * s * s * r7),
    )


def exact_gelu(x: Array) -> Array:
    """x Φ(x) with the exact distribution function: `jax.nn.gelu` defaults to another function."""
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS = {
    each.name: each
    for each in (
        Activation("erf", jax.lax.erf, _erf),
        Activation("gelu", exact_gelu, _gelu),
        Activation("relu", jax.nn.relu, _relu, smooth=False),
        Activation("identity", lambda x: x, _identity),
        Activation("sin", jnp.sin, _waves(even=False)),
        Activation("cos", jnp.cos, _waves(even=True)),
        Activation("gaussian", lambda x: jnp.exp(-x * x / 2), _gaussian),
    )
}


def derivatives(phi: Callable[[Array], Array], x: Array, order: int) -> list[Array]:
    """[φ(x), φ'(x), …, φ⁽ᵒʳᵈᵉʳ⁾(x)] elementwise, by forward differentiation."""
    functions = [phi]
    for _ in range(order):
        functions.append(_slope(functions[-1]))
    return [function(x) for function in functions]


def _slope(phi: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: jax.jvp(phi, (x,), (jnp.ones_like(x),))[1]


@functools.lru_cache(maxsize=64)
def from_function(
    phi: Callable[[Array], Array], *, n_quad: int = 64, name: str = "custom"
) -> Activation:
    """The activation φ with duals by Gauss-Hermite quadrature, `n_quad` nodes on either axis.

    φ acts elementwise, is four times differentiable by JAX and grows slower than exp(x²/4). The
    nodes are u = √a z, v = (s/√a) z + √(b − s²/a) z' with a, b raised by 1e-12. Polynomials of
    degree below `n_quad` come out exact, entire functions converge fast, and those with poles near
    the real axis slowly (tanh: derivatives of its kernels to about 1e-4 with 64 nodes). Costs
    n_quad² values of φ and four derivatives for each pair of inputs and layer. The result is kept:
    the same φ gives the same object, which jit needs.

    Raises:
        UserError: φ is `jax.nn.relu`, whose second derivative is no function.
    """
    positive_int("n_quad", n_quad)
    if phi is jax.nn.relu:
        raise UserError("phi=jax.nn.relu has no quadrature: use activation='relu'")
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_quad)
    weights = weights / weights.sum()

    def dual(a: Scalars, b: Scalars, s: Scalars) -> Dual:
        a, b, s = jnp.broadcast_arrays(*map(jnp.asarray, (a, b, s)))
        z, w = jnp.asarray(nodes, s.dtype), jnp.asarray(weights, s.dtype)
        root = jnp.sqrt(a + FLOOR)[..., None]
        slope = s[..., None] / root
        rest = jnp.sqrt(jnp.maximum(b[..., None] - slope * slope, 0) + FLOOR)
        z = z.reshape((1,) * s.ndim + (-1,))
        mixed = (slope * z)[..., None] + rest[..., None] * z[..., None, :]
        left = derivatives(phi, root * z, 4)
        right = [jnp.einsum("...ij,j->...i", each, w) for each in derivatives(phi, mixed, 4)]

        def mean(i: int, j: int) -> Array:
            return jnp.einsum("...i,...i,i->...", left[i], right[j], w)

        return Dual(
            mean(0, 0), mean(2, 0) / 2, mean(0, 2) / 2, mean(1, 1), mean(3, 1) / 2,
            mean(1, 3) / 2, mean(2, 2), mean(4, 2) / 2, mean(2, 4) / 2, mean(3, 3),
        )  # fmt: skip

    return Activation(name, phi, dual)


def resolve(activation: str | Activation | Callable[[Array], Array]) -> Activation:
    """An activation by its name in ACTIVATIONS, as itself, or by quadrature of a function."""
    if isinstance(activation, Activation):
        return activation
    if callable(activation):
        return from_function(activation)
    return choose("activation", activation, ACTIVATIONS)


def dual(activation: str | Activation | Callable[[Array], Array], a: Any, b: Any, s: Any) -> Dual:
    """E[φ(u) φ(v)] and its derivatives at (u, v) ~ N(0, [[a, s], [s, b]]); no normaliser.

    a, b, s: arrays of equal rank that broadcast, or scalars; a, b >= 0 and s² <= ab, for ReLU
    a, b > 0. The precision is that of the arrays: float64 needs a `jax.enable_x64(True)` scope.
    """
    return resolve(activation).dual(*map(jnp.asarray, (a, b, s)))


@functools.lru_cache(maxsize=64)
def second_moment(activation: Activation) -> float:
    """E[φ(z)²], z ~ N(0, 1), in double precision.

    erf: (2/π) arcsin(2/3) = 0.464559; GeLU: 0.425221; ReLU: 1/2.
    """
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        one = jnp.ones((), jnp.float64)
        # One program for k alone: the ten expectations one operation at a time take seconds.
        return float(jax.jit(lambda z: activation.dual(z, z, z).k)(one))


def normaliser(activation: str | Activation | Callable[[Array], Array]) -> float:
    """c = E[φ(z)²]^(-1/2), z ~ N(0, 1): c φ keeps unit variance. A Python float.

    A NumPy float64 would turn a float32 run into a float64 one inside `enable_x64`.
    """
    return second_moment(resolve(activation)) ** -0.5
