"""Kernels of a finite network, in three forms that agree: explicit, as an operator, by layers.

Source: Kim and Yang (ICML 2024). The finite JNTK is Θ_n(x, x')_αβ = ⟨∂F_α(x)/∂θ, ∂F_β(x')/∂θ⟩
over all parameters, with F(x) = (f(x), ∂f/∂x₁, …, ∂f/∂x_d); κ² is inside F.

The layer-wise form is the one that scales. With h⁰ = x, δˡ = ∂f/∂gˡ and the index α for the
derivative in x_α, the gradient in Wˡ is δˡ ⊗ hˡ⁻¹ times a constant, so that its contribution is the
product of two Gram matrices, differentiated by the rule of Leibniz: nothing of size n x n exists
for an example.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from rflib.core import checks
from rflib.methods.jacobian_ntk.duals import derivatives
from rflib.methods.jacobian_ntk.network import Columns, Mlp, Params, Rows, all_values, check

FORMS = ("layers", "explicit", "operator")
Blocks = Float[Array, "N M P P"]


def leibniz(p: Blocks, q: Blocks) -> Blocks:
    """Blocks of the product of two scalar kernels from the blocks of either.

    (P Q)_αβ = P_αβ Q₀₀ + P_α0 Q_0β + P_0β Q_α0 + P₀₀ Q_αβ, and accordingly where an index is 0.
    """
    row, column = p[..., :, :1], p[..., :1, :]
    corner = p[..., :1, :1]
    full = p * q[..., :1, :1] + row * q[..., :1, :] + column * q[..., :, :1] + corner * q
    edge = jnp.arange(p.shape[-1]) == 0
    # An index 0 is not derived in: the general formula counts its terms twice, and twice again.
    halves = jnp.where(edge, 0.5, 1.0).astype(p.dtype)
    shape = (1,) * (p.ndim - 2)
    return full * (halves[:, None] * halves[None, :]).reshape(*shape, len(edge), len(edge))


def layer_jets(
    net: Mlp, params: Params, x: Rows, output: int = 0
) -> tuple[list[Array], list[Array]]:
    """(h⁰ … h^L, δ¹ … δ^(L+1)) with their derivatives in x: each [N, 1+d, width], 0 the value.

    The derivatives go forward through the pass of values and then through the backward pass: all
    1 + d of them are one matrix product a layer.
    """
    x = jnp.asarray(x, params["first"].dtype)
    (n, d), width = x.shape, params["first"].shape[0]
    scales = [net.weight_scales(d)[0], *(each * width**-0.5 for each in net.weight_scales(d)[1:])]
    biases = net.bias_scales()
    inputs = jnp.concatenate(
        [x[:, None], jnp.broadcast_to(jnp.eye(d, dtype=x.dtype), (n, d, d))], 1
    )
    weights = [params["first"], *params["hidden"], params["last"][output : output + 1]]
    shifts = None
    if net.biased:
        shifts = [params["first_bias"], *params["hidden_bias"]]

    hidden, slopes = [inputs], []
    for layer in range(net.depth):
        g = scales[layer] * (hidden[-1] @ weights[layer].T)
        if shifts is not None:
            g = g.at[:, 0].add(biases[layer] * shifts[layer][None])
        value, first, second = (net.gain * each for each in derivatives(net.phi.phi, g[:, 0], 2))
        hidden.append(jnp.concatenate([value[:, None], first[:, None] * g[:, 1:]], 1))
        slopes.append(jnp.concatenate([first[:, None], second[:, None] * g[:, 1:]], 1))

    delta = jnp.zeros((n, 1 + d, 1), x.dtype).at[:, 0].set(net.kappa)
    deltas = [delta]
    for layer in range(net.depth, 0, -1):
        back, slope = scales[layer] * (deltas[0] @ weights[layer]), slopes[layer - 1]
        first = back * slope[:, :1]
        deltas.insert(0, first.at[:, 1:].add(back[:, :1] * slope[:, 1:]))
    return hidden, deltas


def _layers(
    net: Mlp, params: Params, x: Array, x2: Array | None, outputs: tuple[int, int]
) -> Blocks:
    width = params["first"].shape[0]
    h, delta = layer_jets(net, params, x, outputs[0])
    h2, delta2 = h, delta
    if x2 is not None or outputs[0] != outputs[1]:
        h2, delta2 = layer_jets(net, params, x if x2 is None else x2, outputs[1])
    biases = net.bias_scales()
    total: Any = 0.0
    for layer, scale in enumerate(net.weight_scales(x.shape[1])):
        if layer == net.depth and outputs[0] != outputs[1]:
            break  # different outputs share no last weights
        size = scale**2 / (width if layer else 1)
        deltas = _gram(delta[layer], delta2[layer])
        total = total + size * leibniz(deltas, _gram(h[layer], h2[layer]))
        if net.biased:
            total = total + biases[layer] ** 2 * deltas
    return total


def _gram(left: Array, right: Array) -> Blocks:
    return jnp.einsum("ipk,jqk->ijpq", left, right)


def _flat_values(
    net: Mlp, params: Params, x: Array, output: int
) -> tuple[Callable[..., Array], Array]:
    theta, restore = ravel_pytree(params)
    return lambda theta: all_values(net, restore(theta), x)[..., output].ravel(), theta


def _explicit(
    net: Mlp, params: Params, x: Array, x2: Array | None, outputs: tuple[int, int]
) -> Blocks:
    function, theta = _flat_values(net, params, x, outputs[0])
    left = right = jax.jacrev(function)(theta)
    if x2 is not None or outputs[0] != outputs[1]:
        x2 = x if x2 is None else x2
        right = jax.jacrev(_flat_values(net, params, x2, outputs[1])[0])(theta)
    p = 1 + x.shape[1]
    return jnp.swapaxes((left @ right.T).reshape(len(x), p, -1, p), 1, 2)


def empirical_matvec(
    net: Mlp,
    params: Params,
    x: Rows,
    v: Float[Array, "M 1+d"],
    x2: Columns | None = None,
    *,
    outputs: tuple[int, int] = (0, 0),
) -> Float[Array, "N 1+d"]:
    """Θ_n(x, x2) v = J(x) (J(x2)ᵀ v): a backward and a forward product, memory O(parameters)."""
    x, x2 = (jnp.asarray(x if each is None else each, params["first"].dtype) for each in (x, x2))
    left, theta = _flat_values(net, params, x, outputs[0])
    right, _ = _flat_values(net, params, x2, outputs[1])
    (gradient,) = jax.vjp(right, theta)[1](jnp.asarray(v, theta.dtype).ravel())
    return jax.jvp(left, (theta,), (gradient,))[1].reshape(len(x), -1)


def _operator(
    net: Mlp, params: Params, x: Array, x2: Array | None, outputs: tuple[int, int]
) -> Blocks:
    columns = x if x2 is None else x2
    m, p = len(columns), 1 + x.shape[1]
    basis = jnp.eye(m * p, dtype=x.dtype).reshape(m * p, m, p)
    apply = functools.partial(empirical_matvec, net, params, x, x2=columns, outputs=outputs)
    found = jax.lax.map(apply, basis).reshape(m, p, len(x), p)
    return found.transpose(2, 0, 3, 1)


def empirical_jntk(
    net: Mlp,
    params: Params,
    x: Rows,
    x2: Columns | None = None,
    *,
    form: str = "layers",
    outputs: tuple[int, int] = (0, 0),
) -> Blocks:
    """The JNTK of a finite network, [N, M, 1+d, 1+d], κ² included; pure, differentiable, unjitted.

    Args:
        net, params: the network, from `network.init`; the precision is that of `params`.
        x, x2: inputs [N, d], [M, d] (default: x2 = x).
        form: "layers": products of Gram matrices, memory O(N (1+d) n) a layer, for any width;
            "explicit": all parameter gradients, memory O(N (1+d) n²), small networks only;
            "operator": one backward and one forward pass for each column.
        outputs: which output derives in x and which in x2; at infinite width the kernel of two
            different outputs is 0.

    Raises:
        UserError: an unknown form.
    """
    check(net)
    function = checks.choose(
        "form", form, {"layers": _layers, "explicit": _explicit, "operator": _operator}
    )
    dtype = params["first"].dtype
    return function(
        net, params, jnp.asarray(x, dtype), None if x2 is None else jnp.asarray(x2, dtype), outputs
    )


def empirical_jnngp(net: Mlp, params: Params, x: Rows, x2: Columns | None = None) -> Blocks:
    """n⁻¹ Σ_i of products of (h_i, ∂h_i/∂x) over the last hidden units, times κ² σ² (and + κ² τ²).

    It is the inner product of the gradients in the last weights; its mean is the Jacobian NNGP
    kernel exactly at depth 1 and in the limit of wide networks beyond. [N, M, 1+d, 1+d].
    """
    check(net)
    h = layer_jets(net, params, x)[0][-1]
    h2 = h if x2 is None else layer_jets(net, params, x2)[0][-1]
    scale, shift = net.weight_scales(h.shape[1] - 1)[-1], net.bias_scales()[-1]
    found = (net.kappa * scale) ** 2 / h.shape[-1] * _gram(h, h2)
    return found.at[..., 0, 0].add((net.kappa * shift) ** 2)
