"""What the utility networks are trained on: standardised targets and their squared error.

As Hossain et al. (ICML 2024) learn utilities by regression on exact ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.methods.persuasion.model import Network, Params, apply


class Normaliser(NamedTuple):
    """Affine map from utilities to training targets, for each sender; vmap over games is free.

    mean, std: of the training utilities. A constant utility has std 1, its targets are 0.
    """

    mean: Float[Array, "*games senders"]
    std: Float[Array, "*games senders"]


def normaliser(utilities: Float[Array | np.ndarray, "*games profiles senders"]) -> Normaliser:
    """Mean and standard deviation over the profiles."""
    utilities = jnp.asarray(utilities)
    mean, std = jnp.mean(utilities, -2), jnp.std(utilities, -2)
    # Rounding gives a constant a deviation of about its size times machine precision.
    least = 8 * jnp.finfo(std.dtype).eps * jnp.max(jnp.abs(utilities), -2)
    return Normaliser(mean, jnp.where(std > least, std, 1))


def standardise(
    scale: Normaliser, utilities: Float[Array | np.ndarray, "*games profiles senders"]
) -> Float[Array, "*games profiles senders"]:
    """(U - mean)/std."""
    return (jnp.asarray(utilities) - scale.mean[..., None, :]) / scale.std[..., None, :]


def restore(
    scale: Normaliser, targets: Float[Array, "*games profiles senders"]
) -> Float[Array, "*games profiles senders"]:
    """mean + std targets: the inverse of `standardise`."""
    return scale.mean[..., None, :] + scale.std[..., None, :] * targets


def predict(
    params: Params, network: Network, inputs: Float[Array, "*profiles inputs"], train: bool = False
) -> Float[Array, "*profiles senders"]:
    """Standardised utilities of many profiles under one network."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    found = jax.vmap(lambda x: apply(params, network, x, train))(flat)
    return found.reshape(*inputs.shape[:-1], network.senders)


def loss(
    params: Params,
    network: Network,
    inputs: Float[Array, "profiles inputs"],
    targets: Float[Array, "profiles senders"],
) -> Float[Array, ""]:
    """Mean squared error over profiles and senders, with the network in training mode.

    targets: standardised. A sum over senders of separate networks (`per_sender`) only scales each
    one's gradient by 1/n, to which Adam is blind.
    """
    return jnp.mean(jnp.square(predict(params, network, inputs, train=True) - targets))
