"""The network of any depth as pure functions, and its description, which the kernels share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core import checks, keys
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import duals

Rows = Float[Array | np.ndarray, "N d"]
Columns = Float[Array | np.ndarray, "M _d"]  # a second set of rows
Params = dict[str, Any]


class Mlp(NamedTuple):
    """A fully connected network, hashable: the static argument of kernels and networks alike.

    g¹ = σ₁ [d^(-1/2)] W¹ x + τ₁ b¹, h = c φ(g), gˡ⁺¹ = σ n^(-1/2) Wˡ⁺¹ hˡ + τ bˡ⁺¹, and the output
    f = κ (σ n^(-1/2) W h + τ b) after `depth` hidden layers of width n; all weights ~ N(0, 1).
    The defaults are the paper's: no biases, σ = 1, no 1/√d (inputs are unit vectors), c φ
    normalised.

    Attributes:
        depth: number L >= 1 of hidden layers; there are L + 1 weight matrices.
        activation: a name in `duals.ACTIVATIONS`, an `Activation`, or a smooth function φ.
        normalise: c = E[φ(z)²]^(-1/2) rather than 1.
        kappa: output multiplier κ > 0. Every kernel of this room includes κ².
        sigma_w: σ > 0, one for all or a tuple of depth + 1.
        sigma_b: τ >= 0, likewise; 0 means that there are no biases.
        divide_by_d: the factor d^(-1/2) in the first layer.
    """

    depth: int
    activation: str | duals.Activation | Callable[[Array], Array] = "gelu"
    normalise: bool = True
    kappa: float = 1.0
    sigma_w: float | tuple[float, ...] = 1.0
    sigma_b: float | tuple[float, ...] = 0.0
    divide_by_d: bool = False

    @property
    def phi(self) -> duals.Activation:
        """The activation, looked up."""
        return duals.resolve(self.activation)

    @property
    def gain(self) -> float:
        """c, the factor of φ at every hidden layer."""
        return duals.normaliser(self.activation) if self.normalise else 1.0

    @property
    def biased(self) -> bool:
        """Whether there are biases."""
        return any(_each(self.sigma_b, self.depth))

    def weight_scales(self, d: int) -> tuple[float, ...]:
        """σ of each of the depth + 1 layers, the first with its 1/√d, if any."""
        first, *rest = _each(self.sigma_w, self.depth)
        return (first * d**-0.5 if self.divide_by_d else first, *rest)

    def bias_scales(self) -> tuple[float, ...]:
        """τ of each of the depth + 1 layers."""
        return _each(self.sigma_b, self.depth)


def _each(value: float | tuple[float, ...], depth: int) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,) * (depth + 1)


def check(net: Mlp) -> Mlp:
    """`net`, if it is one: else a UserError naming the field."""
    checks.positive_int("depth", net.depth)
    checks.in_range("kappa", net.kappa, 0, np.inf, open_low=True, open_high=True)
    for name in ("sigma_w", "sigma_b"):
        values = _each(getattr(net, name), net.depth)
        if len(values) != net.depth + 1:
            raise UserError(
                f"{name} has {len(values)} values; depth={net.depth} has {net.depth + 1} layers"
            )
        for value in values:
            checks.in_range(name, value, 0, open_low=name == "sigma_w")
    duals.resolve(net.activation)
    return net


def init(
    key: Array, net: Mlp, d: int, width: int, *, outputs: int = 1, dtype: Any = None
) -> Params:
    """Standard normal weights: "first" [n, d], "hidden" [L-1, n, n], "last" [C, n], biases if any.

    Biases "first_bias" [n], "hidden_bias" [L-1, n], "last_bias" [C] are there only if sigma_b > 0.
    dtype: default is float64 inside `jax.enable_x64(True)`, else float32.
    """
    check(net)
    for name, value in (("d", d), ("width", width), ("outputs", outputs)):
        checks.positive_int(name, value)
    shapes = {
        "first": (width, d),
        "hidden": (net.depth - 1, width, width),
        "last": (outputs, width),
    }
    if net.biased:
        shapes |= {f"{name}_bias": shape[:-1] for name, shape in shapes.items()}
    return {
        name: jax.random.normal(keys.named(key, name), shape, dtype or jnp.result_type(float))
        for name, shape in shapes.items()
    }


def apply(net: Mlp, params: Params, x: Float[Array | np.ndarray, "d"]) -> Float[Array, "C"]:
    """The outputs f(x) [C] at one input [d]; `jax.vmap` over rows."""
    width, d = params["first"].shape
    first, *rest = net.weight_scales(d)
    bias_first, *bias_rest = net.bias_scales()
    root = width**-0.5
    g = first * (params["first"] @ jnp.asarray(x, params["first"].dtype))
    if net.biased:
        g = g + bias_first * params["first_bias"]
    layers = [params["hidden"], jnp.asarray(rest[:-1], g.dtype) * root]
    if net.biased:
        layers += [params["hidden_bias"], jnp.asarray(bias_rest[:-1], g.dtype)]

    def layer(g: Array, each: list[Array]) -> tuple[Array, None]:
        weight, scale, *bias = each
        g = scale * (weight @ activate(net, g))
        return g + bias[1] * bias[0] if bias else g, None

    g, _ = jax.lax.scan(layer, g, layers)
    f = rest[-1] * root * (params["last"] @ activate(net, g))
    if net.biased:
        f = f + bias_rest[-1] * params["last_bias"]
    return net.kappa * f


def activate(net: Mlp, g: Array) -> Array:
    """c φ(g), elementwise."""
    return net.gain * net.phi.phi(g)


def values(net: Mlp, params: Params, x: Rows) -> Float[Array, "N 1+d"]:
    """F(x) = (f, ∂f/∂x₁, …, ∂f/∂x_d) of the first output at every row, by one backward pass."""
    scalar = jax.value_and_grad(lambda row: apply(net, params, row)[0])
    f, jacobian = jax.vmap(scalar)(jnp.asarray(x, params["first"].dtype))
    return jnp.concatenate([f[:, None], jacobian], -1)


def all_values(net: Mlp, params: Params, x: Rows) -> Float[Array, "N 1+d C"]:
    """F(x) of every output, by one backward pass an output."""
    x = jnp.asarray(x, params["first"].dtype)
    f = jax.vmap(lambda row: apply(net, params, row))(x)
    jacobian = jax.vmap(jax.jacrev(lambda row: apply(net, params, row)))(x)
    return jnp.concatenate([f[:, None, :], jnp.swapaxes(jacobian, 1, 2)], 1)


def movement(params: Params, start: Params) -> Float[Array, ""]:
    """|θ − θ₀| / |θ₀|, Euclidean over all weights."""
    moved = jax.tree.map(lambda now, then: jnp.sum((now - then) ** 2), params, start)
    size = jax.tree.map(lambda then: jnp.sum(then**2), start)
    return jnp.sqrt(sum(jax.tree.leaves(moved)) / sum(jax.tree.leaves(size)))
