"""Products with kernels that are never formed, against the kernels themselves."""

import jax
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import products
from rflib.methods.jacobian_ntk.kernels import gram
from rflib.methods.jacobian_ntk.network import Mlp


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(17, 5)) / 2, rng.normal(size=(17, 6))


@pytest.mark.parametrize("kind", ["jntk", "jnngp"])
def test_product_equals_the_dense_one_whatever_the_chunk(float64, rows, kind):
    x, v = rows
    net = Mlp(2, "gelu", kappa=0.5, sigma_b=0.1)
    dense = gram(net, x, kind=kind) @ v.ravel()
    whole = products.jntk_matvec(net, x, v, kind=kind)
    np.testing.assert_allclose(whole.ravel(), dense, rtol=0, atol=1e-12 * abs(dense).max())
    parts = products.jntk_matvec(net, x, v, kind=kind, chunk=5)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-13 * abs(dense).max())
    cross = products.jntk_matvec(net, x[:4], v, x, kind=kind)
    np.testing.assert_allclose(cross, whole[:4], rtol=0, atol=1e-13 * abs(dense).max())


def test_conjugate_gradients_solve_the_ridge_system(rows):
    x, targets = rows
    net, lam, ridge = Mlp(3, "erf"), 0.1, 1e-3
    found = products.solve(net, x, targets, lam=lam, ridge=ridge, tol=1e-11)
    root = np.tile(np.sqrt([1, *[lam] * 5]), 17)
    matrix = root[:, None] * gram(net, x) * root + ridge * np.eye(17 * 6)
    exact = root * np.linalg.solve(matrix, root * targets.ravel())
    assert found.residual < 1e-10 and 0 < found.iterations < 102
    np.testing.assert_allclose(found.coefficients.ravel(), exact, atol=1e-7 * abs(exact).max())
    with pytest.raises(UserError, match=r"lam=0 must lie in \(0"):
        products.solve(net, x, targets, lam=0)


def test_preconditioner_is_the_inverse_of_each_block(float64, rows):
    x, r = rows
    x = x.copy()
    x[3] = 0
    net = Mlp(2, "erf")
    root = np.sqrt(np.array([1, *[0.2] * 5]))
    found = products.block_inverse(net, jax.numpy.asarray(x), jax.numpy.asarray(root), 1e-2)(r)
    matrix = gram(net, x).reshape(17, 6, 17, 6)
    for i in range(17):
        block = root[:, None] * matrix[i, :, i] * root + 1e-2 * np.eye(6)
        np.testing.assert_allclose(found[i], np.linalg.solve(block, r[i]), rtol=1e-9)


def test_largest_eigenvalue_needs_no_matrix(rows):
    x, _ = rows
    for kind in ("jntk", "jnngp"):
        exact = np.linalg.eigvalsh(gram(Mlp(2), x, kind=kind))[-1]
        assert products.largest_eigenvalue(Mlp(2), x, kind=kind) == pytest.approx(exact, rel=1e-9)
