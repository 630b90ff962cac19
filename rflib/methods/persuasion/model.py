"""Networks that learn the senders' utilities from policies: ReLU, DeLU and DNL.

For a fixed map from joint signals to actions a sender's utility is a polynomial in the profile,
linear in each policy; where the map changes it jumps. Hossain et al. (ICML 2024) approximate it by
a discontinuous network with non-linear pieces (DNL) and compare with a plain ReLU network and with
DeLU (Wang et al., "Deep Contract Design via Discontinuous Networks", NeurIPS 2023), whose pieces
are linear. All three start with one layer,

    z = W0ᵀ x + b0,   h = relu(z),   r = 1[z > 0],   e = tanh(V1ᵀ (2r - 1) + c1)

where x holds all policies. Then

    relu:  c2 + W2ᵀ relu(W1ᵀ h + c1)
    delu:  wᵀ h + V2ᵀ e + c2                                    (e gives the bias of each piece)
    dnl:   V2ᵀ e + c2 gives the weights of each piece, in one of three forms (`piece`):
        tanh:         Cᵀ tanh(Aᵀ x + b + Bᵀ h) + d              generated: A, b, C, d
        multilinear:  Cᵀ prod_j (A_jᵀ pi_j + b_j) + d + Gᵀ h    generated: A_j, b_j, C, d
        linear:       Eᵀ x + d + Gᵀ h                           generated: E, d

DeLU and DNL jump exactly on the hyperplanes z = 0. The paper's layer sizes and the inside of its
hypernetwork are not public: sizes, `piece` and the initial values are this project's.

Functions are for one input and one network: `jax.vmap` over inputs, and over the parameters of
many networks (games and seeds) at once.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Key

from rflib.core.checks import in_range, one_of, positive_int
from rflib.core.errors import UserError

Params = dict[str, Array]

KINDS = ("relu", "delu", "dnl")
PIECES = ("tanh", "multilinear", "linear")
HYPER_SCALE = 0.3  # of the hypernetwork's last layer: pieces start close to each other


@dataclasses.dataclass(frozen=True)
class Network:
    """What a utility network is, without its parameters; hashable, so a static argument of jit.

    kind: 'relu', 'delu' or 'dnl'. states: W. signals: S_j for each sender.
    hidden: H, units of the first layer (hyperplanes). width: Z, units of the second.
    features: m, units inside a DNL piece 'tanh' or 'multilinear'. piece: see the module.
    ste: in training, r passes gradients to the first layer as sigmoid(z/temperature) would
        (straight-through estimator). Otherwise it learns through h only.
    per_sender: a network of its own, with one output, for each sender.
    drop_last: x leaves out the last probability of each row, as rows sum to 1.

    Raises:
        UserError: a field out of range.
    """

    kind: str
    states: int
    signals: tuple[int, ...]
    hidden: int = 64
    width: int = 64
    features: int = 16
    piece: str = "tanh"
    ste: bool = False
    temperature: float = 0.1
    per_sender: bool = False
    drop_last: bool = False

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        one_of("piece", self.piece, PIECES)
        for name in ("states", "hidden", "width", "features"):
            positive_int(name, getattr(self, name))
        for signals in self.signals:
            positive_int("signals", signals)
        in_range("temperature", self.temperature, 0, open_low=True)
        if self.inputs == 0:
            raise UserError(
                f"signals={self.signals!r} with drop_last={self.drop_last!r} leaves nothing to "
                "learn from: at least one sender needs two signals"
            )

    @property
    def senders(self) -> int:
        """n."""
        return len(self.signals)

    @property
    def outputs(self) -> int:
        """Outputs of one trunk: n, or 1 with a network for each sender."""
        return 1 if self.per_sender else self.senders

    @property
    def blocks(self) -> tuple[int, ...]:
        """D_j: how many inputs each sender's policy has."""
        return tuple(self.states * (count - self.drop_last) for count in self.signals)

    @property
    def inputs(self) -> int:
        """D = sum_j D_j."""
        return sum(self.blocks)


def flatten(
    profile: tuple[Array | np.ndarray, ...], drop_last: bool = False
) -> Float[Array, "*lead inputs"]:
    """x: all policies [*lead, W, S_j] row by row, sender after sender."""
    rows = [policy[..., :-1] if drop_last else policy for policy in profile]
    return jnp.concatenate([part.reshape(*part.shape[:-2], -1) for part in rows], -1)


def unflatten(network: Network, x: Float[Array, "*lead inputs"]) -> tuple[Array, ...]:
    """The policies [*lead, W, S_j] in x; last probabilities that x leaves out are 1 - the rest."""
    profile, start = [], 0
    for block in network.blocks:
        part = x[..., start : start + block].reshape(*x.shape[:-1], network.states, -1)
        if network.drop_last:
            part = jnp.concatenate([part, 1 - jnp.sum(part, -1, keepdims=True)], -1)
        profile.append(part)
        start += block
    return tuple(profile)


def generated_sizes(network: Network) -> tuple[int, ...]:
    """Numbers in each part that the last layer (V2, c2; W2 for relu) gives, in their order."""
    inputs, outputs, m = network.inputs, network.outputs, network.features
    if network.kind != "dnl":
        return (outputs,)
    if network.piece == "linear":
        return (inputs * outputs, outputs)
    biases = m if network.piece == "tanh" else network.senders * m
    return (inputs * m, biases, m * outputs, outputs)


def shapes(network: Network) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of one trunk."""
    last = sum(generated_sizes(network))
    first = {"W0": (network.inputs, network.hidden), "b0": (network.hidden,)}
    names = ("W1", "c1", "W2", "c2") if network.kind == "relu" else ("V1", "c1", "V2", "c2")
    second = [(network.hidden, network.width), (network.width,), (network.width, last), (last,)]
    found = first | dict(zip(names, second, strict=True))
    if network.kind == "delu":
        found["w"] = (network.hidden, network.outputs)
    if network.kind == "dnl" and network.piece == "tanh":
        found["B"] = (network.hidden, network.features)
    elif network.kind == "dnl":
        found["G"] = (network.hidden, network.outputs)
    return found


def parameter_count(network: Network) -> int:
    """Trainable numbers, over all senders' networks with `per_sender`."""
    copies = network.senders if network.per_sender else 1
    return copies * sum(math.prod(shape) for shape in shapes(network).values())


def match_parameters(network: Network, count: int) -> Network:
    """`network` with hidden = width, the integer whose parameter count is nearest to `count`."""
    count = positive_int("count", count)

    def sized(size: int) -> Network:
        return dataclasses.replace(network, hidden=size, width=size)

    low, high = 1, 2
    while parameter_count(sized(high)) < count:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameter_count(sized(middle)) < count else (low, middle)
    return sized(min(low, high, key=lambda size: abs(parameter_count(sized(size)) - count)))


def _init_one(key: Key[Array, ""], network: Network) -> Params:
    # One draw for all weights and one for all profiles: a program is compiled for every draw.
    sized = {name: shape for name, shape in shapes(network).items() if len(shape) == 2}
    for_weights, for_profiles = jax.random.split(key)
    normal = jax.random.normal(for_weights, (sum(math.prod(shape) for shape in sized.values()),))
    params, start = {}, 0
    for name, shape in shapes(network).items():
        if name not in sized:
            params[name] = jnp.zeros(shape)
            continue
        scale = (HYPER_SCALE if name == "V2" else 1) * math.sqrt(2 / shape[0])
        end = start + math.prod(shape)
        params[name] = scale * normal[start:end].reshape(shape)
        start = end
    if network.kind == "dnl" and network.piece == "multilinear":
        a, b, *_ = generated_sizes(network)
        params["c2"] = params["c2"].at[a : a + b].set(1)  # or all products would start at 0
    # A hyperplane helps only where it cuts the polytope of profiles: each goes through a random
    # one, rows uniform on their simplices (normalised exponentials).
    whole = dataclasses.replace(network, drop_last=False)
    draws = jax.random.exponential(for_profiles, (network.hidden, whole.inputs))
    rows = [part / jnp.sum(part, -1, keepdims=True) for part in unflatten(whole, draws)]
    params["b0"] = -jnp.sum(params["W0"] * flatten(tuple(rows), network.drop_last).T, 0)
    return params


def init(key: Key[Array, ""], network: Network) -> Params:
    """Parameters: He-normal weights (variance 2/fan_in; V2's times 0.3²), biases 0 but b0, which
    puts each hyperplane through a random profile, and the ones of 'multilinear' pieces in c2.

    With `per_sender` every array has the senders in front.
    """
    if network.per_sender:
        keys = jax.random.split(key, network.senders)
        return jax.vmap(lambda key: _init_one(key, network))(keys)
    return _init_one(key, network)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def straight_through(z: Float[Array, "*shape"], temperature: float) -> Float[Array, "*shape"]:
    """1[z > 0], whose derivative is taken to be that of sigmoid(z/temperature)."""
    del temperature
    return (z > 0).astype(z.dtype)


@straight_through.defjvp
def _straight_through_jvp(temperature, primals, tangents):
    (z,), (dz,) = primals, tangents
    gate = jax.nn.sigmoid(z / temperature)
    return straight_through(z, temperature), dz * gate * (1 - gate) / temperature


def _dnl(params: Params, network: Network, x: Array, h: Array, weights: Array) -> Array:
    sizes = generated_sizes(network)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    parts = jnp.split(weights, ends)
    if network.piece == "linear":
        slope = parts[0].reshape(network.inputs, network.outputs)
        return x @ slope + parts[1] + h @ params["G"]
    a = parts[0].reshape(network.inputs, network.features)
    c = parts[2].reshape(network.features, network.outputs)
    if network.piece == "tanh":
        return jnp.tanh(x @ a + parts[1] + h @ params["B"]) @ c + parts[3]
    b = parts[1].reshape(network.senders, network.features)
    product, start = jnp.ones(network.features, x.dtype), 0
    for sender, block in enumerate(network.blocks):
        rows = slice(start, start + block)
        product = product * (x[rows] @ a[rows] + b[sender])
        start += block
    return product @ c + parts[3] + h @ params["G"]


def _apply_one(params: Params, network: Network, x: Array, train: bool) -> Array:
    z = x @ params["W0"] + params["b0"]
    h = jax.nn.relu(z)
    if network.kind == "relu":
        return jax.nn.relu(h @ params["W1"] + params["c1"]) @ params["W2"] + params["c2"]
    soft = network.ste and train
    r = straight_through(z, network.temperature) if soft else (z > 0).astype(z.dtype)
    e = jnp.tanh((2 * r - 1) @ params["V1"] + params["c1"])
    weights = e @ params["V2"] + params["c2"]
    if network.kind == "delu":
        return h @ params["w"] + weights
    return _dnl(params, network, x, h, weights)


def apply(
    params: Params, network: Network, x: Float[Array, " inputs"], train: bool = False
) -> Float[Array, " senders"]:
    """The network's standardised utilities at the profile x (`flatten`).

    train: lets `ste` act. Gradients in x for a search are taken without.
    """
    if network.per_sender:
        one = jax.vmap(lambda own: _apply_one(own, network, x, train))
        return one(params)[:, 0]
    return _apply_one(params, network, x, train)


def pattern(params: Params, x: Float[Array, " inputs"]) -> Float[Array, "*senders hidden"]:
    """r(x), the side of each hyperplane: inside one pattern DeLU is affine, DNL smooth."""
    z = jnp.tensordot(x, params["W0"], ((0,), (params["W0"].ndim - 2,))) + params["b0"]
    return (z > 0).astype(x.dtype)
