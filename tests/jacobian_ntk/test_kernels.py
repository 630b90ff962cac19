"""Limit kernels (Kim and Yang, ICML 2024): two routes to every block, and the laws they obey."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import kernels, theory
from rflib.methods.jacobian_ntk.duals import dual, from_function, normaliser
from rflib.methods.jacobian_ntk.kernels import gram, jacobian_nngp, jacobian_ntk, nngp, ntk, sweep
from rflib.methods.jacobian_ntk.network import Mlp


def wavy(x):
    """A smooth activation without a closed form."""
    return jnp.sin(x) + 0.2 * x * x


ODD = Mlp(2, "gelu", kappa=0.3, sigma_w=(1.0, 1.2, 0.8), sigma_b=(0.1, 0.2, 0.4), divide_by_d=True)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    """Six points of the sphere in four dimensions, one of them pulled off it to norm 1.3."""
    rows = np.random.default_rng(0).normal(size=(6, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[2] *= 1.3
    return rows


@pytest.mark.parametrize(
    ("net", "kind"),
    [
        (Mlp(1, "erf"), "jntk"),
        (Mlp(3, "erf"), "jnngp"),
        (Mlp(3, "erf"), "jntk"),
        (Mlp(3, "gelu"), "jntk"),
        (ODD, "jntk"),  # two layers
        (Mlp(1, from_function(wavy, n_quad=24)), "jntk"),
    ],
    ids=["erf-1", "erf-3-nngp", "erf-3", "gelu-3", "odd-2", "quadrature-1"],  # the same anywhere
)
def test_fast_form_equals_double_differentiation_of_the_scalar_kernel(float64, x, net, kind):
    """Full blocks, radial part included; closed forms to 1e-12, quadrature as its nodes allow."""
    fast = (jacobian_ntk if kind == "jntk" else jacobian_nngp)(net, x)
    if not isinstance(
        net.activation, str
    ):  # differentiating a quadrature keeps its nodes: compare outside
        other = np.asarray(_differences(net, x, kind))
        np.testing.assert_allclose(fast[..., 0, 1:], other, rtol=0, atol=1e-7)
        return
    slow = jax.jit(theory.by_autodiff, static_argnums=0, static_argnames="kind")(net, x, kind=kind)
    np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-12 * float(abs(slow).max()))


def _differences(net, x, kind):
    """Central differences of the scalar kernel in x'."""
    kernel, step = (ntk if kind == "jntk" else nngp), 1e-5
    ways = step * np.concatenate([np.eye(4), -np.eye(4)])
    moved = (x[:, None] + ways).reshape(-1, 4)
    ahead, behind = jnp.split(kernel(net, x, moved).reshape(6, 6, 8), 2, -1)
    return (ahead - behind) / (2 * step)


def test_identity_gives_the_linear_kernel_times_its_layers(float64, x):
    block = jacobian_ntk(Mlp(4, "identity"), x, x[:3])
    linear = jacobian_nngp(Mlp(1, "identity"), x, x[:3])
    np.testing.assert_allclose(block, 5 * linear, atol=1e-13)
    np.testing.assert_allclose(linear[..., 0, 0], x @ x[:3].T, atol=1e-14)
    np.testing.assert_allclose(linear[1, 2, 1:, 0], x[2], atol=1e-14)  # the first index derives x
    np.testing.assert_allclose(linear[1, 2, 0, 1:], x[1], atol=1e-14)
    np.testing.assert_allclose(linear[1, 2, 1:, 1:], np.eye(4), atol=1e-14)


@pytest.mark.parametrize("activation", ["erf", "gelu"])
def test_gram_is_symmetric_and_positive_and_the_ntk_exceeds_the_nngp(x, activation):
    theta, sigma = (gram(Mlp(3, activation), x, kind=kind) for kind in ("jntk", "jnngp"))
    for matrix in (theta, sigma, theta - sigma):
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
        values = np.linalg.eigvalsh(matrix)
        assert values[0] >= -1e-10 * values[-1]


def test_a_block_is_the_transpose_of_its_mirror_image_and_not_symmetric(float64, x):
    block = np.asarray(jacobian_ntk(Mlp(2), x))
    np.testing.assert_allclose(block, block.transpose(1, 0, 3, 2), atol=1e-12)
    assert abs(block[0, 1] - block[0, 1].T).max() > 0.1


@pytest.mark.parametrize("activation", ["erf", "gelu"])
def test_values_are_those_of_an_independent_recursion(float64, x, activation):
    c2 = normaliser(activation) ** 2
    a = (x**2).sum(1)
    size, sigma = a.copy(), x @ x.T
    theta = sigma.copy()
    for _ in range(3):
        k = dual(activation, size[:, None] + 0 * sigma, size[None] + 0 * sigma, sigma)
        sigma, theta = c2 * k.k, c2 * k.k + c2 * theta * k.s
        size = np.diag(sigma)
    net = Mlp(3, activation)
    blocks = jacobian_ntk(net, x), jacobian_nngp(net, x)
    for mine in (blocks[0][..., 0, 0], ntk(net, x)):
        np.testing.assert_allclose(mine, theta, rtol=1e-12)
    for mine in (blocks[1][..., 0, 0], nngp(net, x)):
        np.testing.assert_allclose(mine, sigma, rtol=1e-12)


@pytest.mark.parametrize("activation", ["erf", "gelu", "relu"])
def test_diagonal_on_the_sphere_is_one_and_a_geometric_sum(float64, x, activation):
    net = Mlp(4, activation)
    one, total = theory.unit_diagonal(net)
    np.testing.assert_allclose(np.diag(nngp(net, x[:2])), one, rtol=1e-12)
    np.testing.assert_allclose(np.diag(ntk(net, x[:2])), total, rtol=1e-12)
    slope = {"erf": 1.2257, "relu": 1.0}.get(activation)
    if slope:
        assert total == pytest.approx(sum(slope**j for j in range(5)), rel=2e-4)


def test_rotations_of_the_inputs_rotate_the_blocks(float64, x):
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]
    both = np.eye(5)
    both[1:, 1:] = turn
    net = Mlp(3, "erf")
    expected = both @ np.asarray(jacobian_ntk(net, x, x[::-1])) @ both.T
    np.testing.assert_allclose(
        jacobian_ntk(net, x @ turn.T, x[::-1] @ turn.T), expected, atol=1e-12
    )


def test_chunks_depths_layouts_and_kappa_do_not_change_the_kernel(float64, x):
    net = Mlp(3, "erf", kappa=0.1)
    whole = gram(net, x, x[:4])
    np.testing.assert_allclose(gram(net, x, x[:4], chunk=4), whole, rtol=1e-13, atol=1e-16)
    blocks = jacobian_ntk(net, x, x[:4])
    np.testing.assert_allclose(kernels.flatten(blocks), whole, rtol=1e-13, atol=1e-16)
    np.testing.assert_allclose(gram(net._replace(kappa=1.0), x, x[:4]) / 100, whole, rtol=1e-13)
    for kind in ("jntk", "nngp"):
        for depth, matrix in sweep(net, x, (1, 3), kind=kind):
            expected = gram(net._replace(depth=depth), x, kind=kind)
            np.testing.assert_allclose(matrix, expected, rtol=1e-12, atol=1e-14)
    order = kernels.component_major(6, 4)
    turned = gram(net, x)[np.ix_(order, order)]
    np.testing.assert_allclose(turned[:6, :6], gram(net, x, kind="ntk"), rtol=1e-12)
    np.testing.assert_allclose(turned[6:12, :6], np.asarray(jacobian_ntk(net, x))[..., 1, 0])


def test_single_precision_is_kept_and_near(x):
    single, double = gram(Mlp(3), x, dtype=np.float32), gram(Mlp(3), x)
    assert single.dtype == np.float32 and double.dtype == np.float64
    np.testing.assert_allclose(single, double, atol=1e-6 * abs(double).max())
    with jax.enable_x64(True):  # a constant of double precision would promote
        assert jacobian_ntk(Mlp(2), x.astype(np.float32)).dtype == jnp.float32


def test_double_precision_is_not_rounded_in_silence(x):
    with pytest.raises(UserError, match=r"x is float64.*enable_x64"):
        jacobian_ntk(Mlp(2), x)
    assert jacobian_ntk(Mlp(2), x.astype(np.float32)).dtype == jnp.float32


def test_input_zero_is_regular_for_smooth_activations(float64, x):
    rows = np.concatenate([x[:2], np.zeros((1, 4))])
    for activation in ("erf", "gelu"):
        assert np.isfinite(jacobian_ntk(Mlp(2, activation), rows)).all()
    with pytest.raises(UserError, match="singular at an input of 0"):
        ntk(Mlp(2, "relu"), rows)


def test_relu_is_refused_on_the_diagonal_and_exact_off_it(float64, x):
    net = Mlp(2, "relu")
    for call in (jacobian_ntk, jacobian_nngp, gram):
        with pytest.raises(UserError, match=r"collinear.*E\[φ''\(u\) φ''\(u'\)\] is infinite"):
            call(net, x)
    with pytest.raises(UserError, match="rows 1 of x and 0 of x2"):
        jacobian_ntk(net, x[:2], -2 * x[1:2])
    found = jacobian_ntk(net, x[:3], x[3:])

    def scalar(u, v):  # on the diagonal normalised ReLU keeps |x|²: nothing singular in between
        size, s = u @ u * (v @ v), u @ v
        theta = s
        for _ in range(2):
            k = dual("relu", jnp.sqrt(size), jnp.sqrt(size), s)  # homogeneous in both arguments
            s, theta = 2 * k.k, 2 * k.k + 2 * theta * k.s
        return theta

    mixed = jax.jacfwd(jax.grad(scalar, 0), 1)
    other = jax.jit(jax.vmap(jax.vmap(mixed, (None, 0)), (0, None)))(x[:3], x[3:])
    np.testing.assert_allclose(found[..., 1:, 1:], other, atol=1e-11)
    assert np.isfinite(ntk(net, x)).all() and np.isfinite(gram(net, x, kind="nngp")).all()


def test_mistakes_are_explained(x):
    with pytest.raises(UserError, match="depth=0 must be a whole number"):
        gram(Mlp(0), x)
    with pytest.raises(UserError, match=r"sigma_w has 2 values; depth=2 has 3 layers"):
        gram(Mlp(2, sigma_w=(1.0, 1.0)), x)
    with pytest.raises(UserError, match=r"inputs are \[N, d\]"):
        gram(Mlp(2), x, x[:, :3])
    with pytest.raises(UserError, match="'jtk' is not one of"):
        gram(Mlp(2), x, kind="jtk")
    with pytest.raises(UserError, match="one sigma_w"):
        next(sweep(ODD, x, (1, 2)))
