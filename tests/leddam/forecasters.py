"""What the tests of the peer forecasters share: variables, windows, numpy layers, common laws."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from rflib.nn import variables

# Overrides of the experiment's config that make every model as small as it gets.
SMALL: dict[str, Any] = {
    "data.seq_len": 16,
    "model.leddam.d_model": 16,
    "model.leddam.period": 8,
    "model.leddam.kernel_size": 3,
    "model.itransformer.d_model": 8,
    "model.patchtst.d_model": 8,
    "model.patchtst.d_ff": 8,
    "model.lightts.d_model": 16,
    "model.lstm.hidden": 4,
    "model.scinet.n_levels": 2,
    "model.plugin.kernel_size": 3,
    "model.dlinear.kernel_size": 3,
    **{f"model.{name}.{key}": value for name in ("transformer", "informer")
       for key, value in (("d_model", 8), ("d_ff", 8), ("n_heads", 2), ("label_len", 4))},
}  # fmt: skip

FAST = jax.jit(variables.apply, static_argnums=0, static_argnames="train")


def draws(seed: int) -> jax.Array:
    """A key of XLA's own generator: it compiles in a fraction of the time of the default one."""
    return jax.random.key(seed, impl="unsafe_rbg")


@functools.partial(jax.jit, static_argnums=0)
def _initial(module: Any, key: jax.Array) -> dict:
    return variables.init(module, key, (1, module.seq_len, module.n_series))


def initial(module: Any) -> dict:
    return _initial(module, draws(0))


@functools.cache
def shapes(module: Any) -> dict:
    x = (1, module.seq_len, module.n_series)
    return jax.eval_shape(lambda key: variables.init(module, key, x), draws(0))


def shaken(module: Any, seed: int = 0) -> dict:
    """Variables far from their initial values everywhere, running averages included.

    Drawn from the shapes alone: compiling the initialisation would cost more than the test.
    """
    rng = np.random.default_rng(seed)

    def draw(path: tuple, leaf: Any) -> jax.Array:
        if path[-1].key in ("scale", "var"):
            return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), jnp.float32)
        return jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes(module))


def windows(module: Any, seed: int = 1, batch: int = 4) -> np.ndarray:
    """Random walks, a different level and size for each series, [batch, T, N] float32."""
    rng = np.random.default_rng(seed)
    walk = rng.normal(size=(batch, module.seq_len, module.n_series)).cumsum(1)
    walk += np.linspace(0, 2, module.seq_len)[None, :, None]  # no window is nearly constant
    levels = 3 * rng.normal(size=(batch, 1, module.n_series))
    return (walk * (1 + np.arange(module.n_series)) / 2 + levels).astype(np.float32)


def wide(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def lin(p: dict, x: np.ndarray) -> np.ndarray:
    return x @ wide(p["weight"]).T + wide(p["bias"])


def leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.01 * x)


def follows_scale_and_shift(module: Any) -> bool:
    """Whether the forecast of a x + b is a (forecast of x) + b, for each series its own a and b.

    Only the 1e-5 inside the normalisation's square root may break it: 1e-3 of the forecast's size.
    """
    v, x = shaken(module), windows(module)
    scale = np.float32([[np.geomspace(0.5, 20, module.n_series)]]).reshape(1, 1, -1)
    shift = np.linspace(-4, 9, module.n_series, dtype=np.float32).reshape(1, 1, -1)
    one, other = (np.asarray(FAST(module, v, part)[0]) for part in (x, x * scale + shift))
    size = np.abs(scale * (one - one.mean((0, 1), keepdims=True))).max((0, 1))
    assert (x.std(1) * scale[0]).min() > 0.1
    assert size.min() > 0.01
    return bool((np.abs(other - (scale * one + shift)).max((0, 1)) <= 1e-3 * size).all())


def silent_parameters(module: Any) -> list[str]:
    """Names of parameters with an entry that the training loss does not depend on.

    It asks for two gradients, of other values and another key, from one trace.
    """
    traces = 0
    target = jnp.asarray(np.random.default_rng(5).normal(size=(4, module.pred_len, 1)), jnp.float32)

    @jax.jit
    def gradient(params: Any, extra: Any, x: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        nonlocal traces
        traces += 1

        def loss(params: Any) -> tuple[jax.Array, Any]:
            state = {"params": params, "extra": extra}
            forecast, changed = variables.apply(module, state, x, train=True, key=key)
            assert forecast.shape == (4, module.pred_len, module.n_series)
            assert forecast.dtype == jnp.float32
            return jnp.mean(jnp.square(forecast - target)), changed

        return jax.grad(loss, has_aux=True)(params)

    v = shaken(module)
    extra = v["extra"]
    for seed in range(2):
        x = jnp.asarray(windows(module, seed))
        gradients, extra = gradient(v["params"], extra, x, draws(seed))
    assert traces == 1
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    assert all(np.isfinite(leaf).all() for _, leaf in leaves)
    return [jax.tree_util.keystr(path) for path, leaf in leaves if (np.asarray(leaf) == 0).any()]


def dropout_is_drawn_by_key(module: nn.Module) -> None:
    """Equal keys give equal training forecasts, other keys other ones."""
    v, x = shaken(module), windows(module)
    one, same, other = (
        np.asarray(FAST(module, v, x, train=True, key=draws(seed))[0]) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3
