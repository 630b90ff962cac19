"""Networks: shapes, neutral start, no view of x_0; a short fit; transfer of a DDPM network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.core.trees import size
from rflib.diffusion.schedule import DiscreteSchedule, linear_betas
from rflib.methods.ehrenfest import losses, reverse, theory, transfer
from rflib.methods.ehrenfest.model import Mlp, ResidualMlp, time_features
from rflib.methods.ehrenfest.process import make_process
from rflib.methods.ehrenfest.theory import BIMODAL

PROCESS = make_process(16, "song")
NETS = {
    "mlp": (Mlp(PROCESS, 2, width=16, layers=2), (3,)),
    "residual": (ResidualMlp(PROCESS, 2, width=16, blocks=2, embedding=8), (4, 4, 1)),
}


@pytest.mark.parametrize("name", NETS)
def test_networks_start_at_zero_and_see_state_and_time(name):
    net, shape = NETS[name]
    x, t = jax.random.normal(jax.random.key(0), (5, *shape)), jnp.linspace(0.01, 0.99, 5)
    variables = jax.jit(net.init)(jax.random.key(1), x, t)
    apply = jax.jit(net.apply)
    out = apply(variables, x, t)
    assert out.shape == (5, *shape, 2)
    np.testing.assert_array_equal(out, 0)
    moved = jax.tree.map(
        lambda p: p + 0.3 * jax.random.normal(jax.random.key(p.size), p.shape), variables
    )
    base = apply(moved, x, t)
    assert np.abs(base - apply(moved, x, t[::-1])).max() > 1e-3
    assert np.abs(base - apply(moved, -x, t)).max() > 1e-3
    np.testing.assert_allclose(base[::-1], apply(moved, x[::-1], t[::-1]), atol=1e-4)
    # Zero ratios' logarithms: rates of the neutral start are those of the stationary process.
    k = jnp.full((5, *shape), 8, jnp.int32)
    ratios = reverse.network_ratios("ratio", out, k, PROCESS, t)
    np.testing.assert_array_equal(ratios.up, 1)


def test_residual_network_for_digits_has_its_size():
    net = ResidualMlp(PROCESS, 1)
    x, t = jnp.zeros((2, 8, 8, 1)), jnp.ones(2)
    shapes = jax.eval_shape(net.init, jax.random.key(0), x, t)
    assert 2.3e6 < size(shapes) < 2.6e6


def test_time_features_are_finite_and_separate_times():
    t = jnp.linspace(PROCESS.t_min, PROCESS.t_max, 50)
    features = np.asarray(time_features(t, PROCESS))
    assert features.shape == (50, 17) and np.all(np.isfinite(features))
    np.testing.assert_allclose(features[:, 16], np.log(PROCESS.sig2(t)), rtol=1e-6)
    gaps = np.linalg.norm(features[:, None] - features[None], axis=2) + 10 * np.eye(50)
    assert gaps.min() > 0.1


def test_training_lowers_the_loss_to_near_its_floor():
    """One coordinate, a bimodal law on 17 states: ε by gradient descent with momentum.

    The floor is E Var[ε | x_t], by enumeration.
    """
    p0 = BIMODAL.lattice(16)
    net = Mlp(PROCESS, 1, width=32, layers=2)
    k0 = jnp.asarray(np.random.default_rng(0).choice(17, (256, 1), p=p0), jnp.int32)
    variables = net.init(jax.random.key(0), jnp.zeros((1, 1)), jnp.ones(1))

    def loss(params, key):
        return losses.ou_loss(net.apply, params, key, k0, PROCESS)[0]

    @jax.jit
    def train(params, key):
        def step(state, number):
            params, velocity = state
            value, gradient = jax.value_and_grad(loss)(params, jax.random.fold_in(key, number))
            velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
            params = jax.tree.map(lambda p, v: p - 0.02 * v, params, velocity)
            return (params, velocity), value

        start = (params, jax.tree.map(jnp.zeros_like, params))
        return jax.lax.scan(step, start, jnp.arange(600))

    _, values = train(variables, jax.random.key(1))
    floor, x = [], np.asarray(PROCESS.to_x(jnp.arange(17)))
    for t in np.linspace(0.01, 0.99, 50):
        w = float(PROCESS.w(t))
        law = np.stack([theory.transition_column(16, k, w) for k in range(17)], 1) * p0[None]
        eps = (x[:, None] - w * x[None]) / np.sqrt(1 - w * w)
        mean = (law * eps).sum(1) / np.maximum(law.sum(1), 1e-300)
        floor.append((law * np.square(eps - mean[:, None])).sum())
    last = float(np.mean(values[-100:]))
    assert np.mean(floor) * 0.9 < last < np.mean(floor) * 1.25
    assert last < 0.8 * float(values[0])


def test_table_of_a_discrete_model_is_met_where_the_signals_are_equal(float64):
    process = make_process(65536, "song")
    table = DiscreteSchedule.from_betas(linear_betas(1000))
    t = jnp.linspace(0.05, 0.95, 7)
    found = transfer.time_map(t, table, process)
    assert np.all(found.inside) and np.all(np.diff(found.index) > 0)
    np.testing.assert_allclose(table.schedule().alpha(found.time), process.w(t), rtol=1e-6)
    assert transfer.share_outside(table, process, 100) == 0
    late = DiscreteSchedule.from_betas(linear_betas(1000)[:500])
    assert 0.2 < transfer.share_outside(late, process, 100) < 0.8


def test_transferred_network_is_asked_at_its_own_times():
    process = make_process(400, "song")
    table = DiscreteSchedule.from_betas(linear_betas(1000))
    seen = []
    eps = lambda x, t: seen.append(t) or x  # noqa: E731
    network = transfer.transferred(eps, table, process)
    out = network(jnp.ones((2, 3)), jnp.asarray([0.2, 0.8]))
    assert out.shape == (2, 3, 1)
    np.testing.assert_allclose(seen[0], [0.2, 0.8], atol=0.02)  # nearly the same schedule


def test_wrong_arguments_are_named():
    with pytest.raises(UserError, match="heads"):
        Mlp(PROCESS, 0)
    with pytest.raises(UserError, match="blocks"):
        ResidualMlp(PROCESS, 1, blocks=0)
