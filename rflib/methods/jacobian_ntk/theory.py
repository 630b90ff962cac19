"""What the kernels must be by other routes, and how errors fall with the width."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.kernels import Blocks, as_inputs, nngp, ntk
from rflib.methods.jacobian_ntk.network import Columns, Mlp, Rows


def by_autodiff(net: Mlp, x: Rows, x2: Columns | None = None, *, kind: str = "jntk") -> Blocks:
    """The blocks as derivatives of the scalar kernel in x and x', by JAX: slow, and independent.

    Kim and Yang (ICML 2024): the limit kernel of the Jacobian is ∂_x ∂_x' of the limit kernel.
    kind: "jntk" or "jnngp". Arguments and errors as `kernels.jacobian_ntk`.
    """
    kernel = {"jntk": ntk, "jnngp": nngp}[checks.one_of("kind", kind, ("jntk", "jnngp"))]
    x, x2 = as_inputs(net, x, x2, derivatives=True)

    def scalar(u: Array, v: Array) -> Array:
        return kernel(net, u[None], v[None])[0, 0]

    def block(u: Array, v: Array) -> Array:
        value, (left, right) = jax.value_and_grad(scalar, (0, 1))(u, v)
        mixed = jax.jacfwd(jax.grad(scalar, 0), 1)(u, v)
        top = jnp.concatenate([value[None], right])[None]
        return jnp.concatenate([top, jnp.concatenate([left[:, None], mixed], 1)])

    return jax.vmap(lambda u: jax.vmap(lambda v: block(u, v))(x2))(x)


def unit_diagonal(net: Mlp) -> tuple[float, float]:
    """(Σ₀₀(x, x), Θ₀₀(x, x)) / κ² of a unit vector x: 1 and Σ_j D₁ʲ over j = 0 … L.

    D₁ = c² E[φ'(z)²]; for the default network (normalised, no biases, σ = 1).
    """
    if net._replace(depth=1, activation="erf", kappa=1.0) != Mlp(1, "erf"):
        raise UserError("the closed form of the diagonal is that of the default scales")
    with jax.enable_x64(True):
        one = jnp.ones(())
        slope = float(net.phi.dual(one, one, one).s) * net.gain**2
    return 1.0, float(sum(slope**power for power in range(net.depth + 1)))


class PowerLaw(NamedTuple):
    """error ≈ constant · width^(−exponent)."""

    constant: float
    exponent: float

    def error(self, width: float) -> float:
        """The fitted error at a width."""
        return self.constant * width**-self.exponent

    def width(self, error: float) -> float:
        """The width at which the fitted error is `error`; infinite if it does not fall."""
        checks.in_range("error", error, 0, open_low=True)
        if self.exponent <= 0:
            return float("inf")
        return float((self.constant / error) ** (1 / self.exponent))


def power_law(widths: Float[np.ndarray, "W"], errors: Float[np.ndarray, "W"]) -> PowerLaw:
    """Least squares of log error on log width; at least two different widths, errors > 0.

    The width that the convergence theorem of Kim and Yang asks for, of the order of
    N² (log N)^(12 L), is loose by many orders; `PowerLaw.width(λ_min)` is the measured one.
    """
    widths, errors = np.asarray(widths, float), np.asarray(errors, float)
    if len(np.unique(widths)) < 2 or np.min(errors) <= 0 or widths.shape != errors.shape:
        raise UserError("a power law takes two or more widths, and an error > 0 for each")
    slope, level = np.polyfit(np.log(widths), np.log(errors), 1)
    return PowerLaw(float(np.exp(level)), float(-slope))


def bootstrap_mean(
    samples: Float[np.ndarray, "R *shape"], *, resamples: int = 10_000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, low, high) over the first axis, 95 % percentile bootstrap of the mean."""
    samples = np.asarray(samples, float)
    drawn = np.random.default_rng(seed).integers(len(samples), size=(resamples, len(samples)))
    counts = np.stack([np.sum(drawn == each, axis=1) for each in range(len(samples))], 1)
    means = np.tensordot(counts / len(samples), samples, 1)
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return samples.mean(0), low, high
