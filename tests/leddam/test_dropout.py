"""Dropout (Srivastava et al., 2014) with two decisions a random word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.methods.leddam.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_entries_are_dropped_at_the_rate_and_independently_of_their_neighbour(rate):
    x = jnp.ones((200, 301))
    kept = np.asarray(
        Dropout(rate).apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(0)})
    )
    values = np.unique(kept)
    np.testing.assert_allclose(values, [0, 1 / (1 - rate)], rtol=1e-4)
    alive, sigma = kept > 0, np.sqrt(rate * (1 - rate) / x.size)
    assert abs(alive.mean() - (1 - rate)) < 4 * sigma
    assert abs(alive[:, -1].mean() - (1 - rate)) < 4 * sigma * np.sqrt(301)
    for shift, axis in ((1, 1), (2, 1), (1, 0)):  # 1 along the last axis: the same random word
        correlation = np.corrcoef(alive.ravel(), np.roll(alive, shift, axis).ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(x.size)


def test_it_is_the_identity_when_deterministic_or_at_rate_0_and_needs_a_key_otherwise():
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, deterministic=True), x)
    np.testing.assert_array_equal(Dropout(0.0).apply({}, x, deterministic=False), x)
    with pytest.raises(Exception, match="dropout"):
        Dropout(0.5).apply({}, x, deterministic=False)
