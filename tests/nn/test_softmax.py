import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.nn.softmax import softmax


@pytest.fixture
def scores():
    return 3 * jax.random.normal(jax.random.key(0), (2, 3, 7))


def test_it_is_exp_over_the_sum_of_exp(scores):
    literal = np.exp(np.asarray(scores, np.float64))
    np.testing.assert_allclose(softmax(scores), literal / literal.sum(-1, keepdims=True), rtol=2e-6)


def test_its_gradient_is_that_of_jax(scores):
    weights = jax.random.normal(jax.random.key(1), scores.shape)

    def of(function):
        return jax.grad(lambda s: jnp.sum(jnp.sin(weights * function(s))))(scores)

    np.testing.assert_allclose(of(softmax), of(jax.nn.softmax), atol=1e-6)


def test_a_masked_score_has_no_weight_and_no_gradient(scores):
    masked = scores.at[..., 2].set(-jnp.inf)
    assert (softmax(masked)[..., 2] == 0).all()
    gradient = jax.grad(lambda s: jnp.sum(softmax(s) ** 2))(masked)
    assert jnp.isfinite(gradient).all() and (gradient[..., 2] == 0).all()


def test_scores_of_any_size_stay_finite():
    np.testing.assert_array_equal(softmax(jnp.asarray([1e30, 0.0, -1e30])), [1.0, 0.0, 0.0])
