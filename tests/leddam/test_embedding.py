"""The position tables over channels of Leddam's embedding (ICML 2024, section 3.1)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.leddam.embedding import TABLES, Embedding, plane, position_size


@pytest.mark.parametrize("pe", TABLES)
def test_every_position_table_has_as_many_trainable_numbers_as_stated(pe):
    start = Embedding(3, 12, 16, pe).init(jax.random.key(0), jnp.zeros((1, 3, 12)))
    trained = start["params"].get("position", jnp.zeros(0))
    assert trained.size == position_size(pe, 3, 16)
    table = start["frozen"]["position"] if pe == "no" else trained
    assert np.isfinite(table).all() and np.std(table) > 0


@pytest.mark.parametrize("pe", ["sincos", "lin1d", "exp1d", "lin2d", "exp2d"])
def test_deterministic_tables_have_mean_0_and_sample_deviation_a_tenth(pe):
    table = np.asarray(TABLES[pe](jax.random.key(0), 7, 32), np.float64)
    assert abs(table.mean()) < 1e-7
    assert abs(table.std(ddof=1) - 0.1) < 1e-7
    others = TABLES[pe](jax.random.key(1), 7, 32)
    np.testing.assert_array_equal(others, table.astype(np.float32))


def test_sincos_and_line_tables_are_affine_images_of_their_definitions():
    table = np.asarray(TABLES["sincos"](jax.random.key(0), 5, 6), np.float64)
    angle = [[n / 10000 ** (2 * (j // 2) / 6) for j in range(6)] for n in range(5)]
    raw = np.where(np.arange(6) % 2 == 0, np.sin(angle), np.cos(angle))
    np.testing.assert_allclose(table, (raw - raw.mean()) / raw.std(ddof=1) / 10, atol=1e-7)
    line = np.asarray(TABLES["exp1d"](jax.random.key(0), 5, 6))[:, 0]
    root = np.sqrt(np.arange(5) / 4)
    np.testing.assert_allclose(line, (root - root.mean()) / root.std(ddof=1) / 10, atol=1e-7)


@pytest.mark.parametrize(
    ("pe", "low", "high"),
    [
        ("no", -0.02, 0.02),
        ("zeros", -0.02, 0.02),
        ("zero", -0.02, 0.02),
        ("uniform", 0.0, 0.1),
    ],
)
def test_random_tables_fill_their_range(pe, low, high):
    table = np.asarray(TABLES[pe](jax.random.key(0), 4000, 8))
    assert low <= table.min() < low + 0.05 * (high - low)
    assert high - 0.05 * (high - low) < table.max() <= high


def test_a_table_of_one_number_a_series_needs_two_series_to_be_normalised():
    with pytest.raises(UserError, match="at least 2 series"):
        TABLES["lin1d"](jax.random.key(0), 1, 8)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_plane_takes_the_first_power_whose_mean_is_near_0_or_the_hundredth(power):
    rows, columns = np.meshgrid(np.linspace(0, 1, 9), np.linspace(0, 1, 6), indexing="ij")
    found = power
    for _ in range(99):
        mean = (2 * (rows * columns) ** found - 1).mean()
        if abs(mean) <= 1e-3:
            break
        found += 0.001 * np.sign(mean)
    raw = 2 * (rows * columns) ** found - 1
    expected = (raw - raw.mean()) / raw.std(ddof=1) / 10
    np.testing.assert_allclose(plane(9, 6, power), expected, atol=1e-6)
