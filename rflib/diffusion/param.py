"""What a denoising network may predict, and how one prediction becomes another.

With x_t = α x_0 + σ ε:  v = α ε - σ x_0 (Salimans and Ho, ICLR 2022),  score = -ε/σ,
flow = ε - x_0. All functions broadcast `alpha` and `sigma` (scalars or (B,)) over the batch.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from rflib.core.checks import one_of
from rflib.diffusion.schedule import bcast

KINDS = ("x0", "eps", "v", "score", "flow")
# Below it, x_0 = (x_t - σ ε)/α amplifies an error of ε more than 10⁴ times; α is taken as 10⁻⁴
# there, so that the x_0 of an exact ε comes out too small instead of infinite.
SMALLEST_ALPHA = 1e-4


def noised(x0: Array, eps: Array, alpha: Array, sigma: Array) -> Array:
    """x_t = α x_0 + σ ε."""
    return bcast(alpha, x0) * x0 + bcast(sigma, x0) * eps


def to_x0(kind: str, out: Array, xt: Array, alpha: Array, sigma: Array) -> Array:
    """x_0 of a prediction `out` of the given kind at x_t.

    Raises:
        UserError: unknown kind.
    """
    one_of("kind", kind, KINDS)
    a, s = bcast(alpha, xt), bcast(sigma, xt)
    if kind == "x0":
        return out
    if kind == "v":
        return (a * xt - s * out) / (a * a + s * s)
    if kind == "flow":
        return (xt - s * out) / (a + s)
    eps = out if kind == "eps" else -s * out
    return (xt - s * eps) / jnp.maximum(a, SMALLEST_ALPHA)


def to_eps(kind: str, out: Array, xt: Array, alpha: Array, sigma: Array) -> Array:
    """ε of a prediction at x_t; σ must be positive where x_0 is what is predicted."""
    one_of("kind", kind, KINDS)
    a, s = bcast(alpha, xt), bcast(sigma, xt)
    if kind == "eps":
        return out
    if kind == "score":
        return -s * out
    if kind == "v":
        return (s * xt + a * out) / (a * a + s * s)
    if kind == "flow":
        return (xt + a * out) / (a + s)
    return (xt - a * out) / s


def to_v(kind: str, out: Array, xt: Array, alpha: Array, sigma: Array) -> Array:
    """v = α ε - σ x_0 of a prediction at x_t."""
    if kind == "v":
        return out
    a, s = bcast(alpha, xt), bcast(sigma, xt)
    return a * to_eps(kind, out, xt, alpha, sigma) - s * to_x0(kind, out, xt, alpha, sigma)


def to_score(kind: str, out: Array, xt: Array, alpha: Array, sigma: Array) -> Array:
    """-ε/σ, the gradient of log p(x_t | x_0), of a prediction at x_t."""
    return out if kind == "score" else -to_eps(kind, out, xt, alpha, sigma) / bcast(sigma, xt)


def to_flow(kind: str, out: Array, xt: Array, alpha: Array, sigma: Array) -> Array:
    """ε - x_0 of a prediction at x_t."""
    if kind == "flow":
        return out
    return to_eps(kind, out, xt, alpha, sigma) - to_x0(kind, out, xt, alpha, sigma)


def convert(kind: str, to: str, out: Array, xt: Array, alpha: Array, sigma: Array) -> Array:
    """A prediction of `kind` as one of kind `to`."""
    table = {"x0": to_x0, "eps": to_eps, "v": to_v, "score": to_score, "flow": to_flow}
    return table[one_of("to", to, KINDS)](kind, out, xt, alpha, sigma)


def precondition_edm(
    network: Callable[[Array, Array], Array], sigma_data: float
) -> Callable[[Array, Float[Array, " B"]], Array]:
    """D(x, σ) = c_skip x + c_out F(c_in x, c_noise), a denoiser whose F sees unit variances.

    c_skip = s²/(σ² + s²), c_out = σ s/√(σ² + s²), c_in = 1/√(σ² + s²), c_noise = ¼ log σ, with
    s = sigma_data (Karras et al., NeurIPS 2022).
    """

    def denoise(x: Array, sigma: Array) -> Array:
        total = jnp.sqrt(jnp.square(sigma) + sigma_data**2)
        skip, out = sigma_data**2 / jnp.square(total), sigma * sigma_data / total
        inner = network(bcast(1 / total, x) * x, jnp.log(sigma) / 4)
        return bcast(skip, x) * x + bcast(out, x) * inner

    return denoise
