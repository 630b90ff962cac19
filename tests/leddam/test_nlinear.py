"""NLinear (Zeng et al., AAAI 2023) against numpy and its exact symmetries."""

import jax
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.nlinear import NLinear
from tests.leddam.forecasters import (
    FAST,
    initial,
    lin,
    shaken,
    shapes,
    silent_parameters,
    windows,
)

SMALL = NLinear(3, 10, 4)


def forecast(x: np.ndarray) -> np.ndarray:
    return np.asarray(FAST(SMALL, shaken(SMALL), x)[0])


def test_nlinear_equals_the_equation_in_numpy():
    x = windows(SMALL)
    v = shaken(SMALL)
    expected = np.empty((4, 4, 3))
    for b in range(4):
        for n in range(3):
            series = x[b, :, n].astype(np.float64)
            expected[b, :, n] = lin(v["params"]["linear"], series - series[-1]) + series[-1]
    for train in (False, True):
        np.testing.assert_allclose(FAST(SMALL, v, x, train=train)[0], expected, atol=1e-5)


def test_nlinear_is_equivariant_to_a_shift_of_each_window_and_series():
    x = windows(SMALL)
    shift = np.random.default_rng(2).normal(size=(4, 1, 3)).astype(np.float32) * 10
    np.testing.assert_allclose(forecast(x + shift), forecast(x) + shift, rtol=1e-5, atol=1e-4)


def test_nlinear_forecasts_a_constant_window_as_that_constant_and_its_bias():
    bias = np.asarray(shaken(SMALL)["params"]["linear"]["bias"])
    got = forecast(np.full((1, 10, 3), 7, np.float32))
    np.testing.assert_allclose(got[0], np.repeat(7 + bias[:, None], 3, 1), rtol=1e-6)


def test_nlinear_is_affine_and_treats_each_series_alone():
    x, y = windows(SMALL), windows(SMALL, 2)
    middle = 0.25 * forecast(x) + 0.75 * forecast(y)
    np.testing.assert_allclose(forecast(0.25 * x + 0.75 * y), middle, rtol=1e-4, atol=1e-4)
    poisoned = x.copy()
    poisoned[:, :, 1] = np.nan
    got = forecast(poisoned)
    assert np.isnan(got[:, :, 1]).all()
    np.testing.assert_array_equal(got[:, :, [0, 2]], forecast(x)[:, :, [0, 2]])


@pytest.mark.parametrize("n_series", [1, 7])
def test_nlinear_has_one_map_for_any_number_of_series_that_starts_within_1_over_sqrt_t(n_series):
    module = NLinear(n_series, 96, 24)
    assert trees.size(shapes(module)["params"]) == 96 * 24 + 24
    for leaf in jax.tree.leaves(initial(module)):
        assert 0.8 * 96**-0.5 < float(np.abs(leaf).max()) <= 96**-0.5


def test_nlinear_trains_every_parameter_but_the_weight_of_the_last_value_and_traces_once():
    # x_T - x_T = 0: that column of the weight has no say, whatever its value.
    assert silent_parameters(SMALL) == ["['linear']['weight']"]
    v, x = shaken(SMALL), windows(SMALL)
    before = np.asarray(FAST(SMALL, v, x)[0])
    weight = v["params"]["linear"]["weight"]
    v["params"]["linear"]["weight"] = weight.at[:, -1].set(100.0)
    np.testing.assert_array_equal(FAST(SMALL, v, x)[0], before)
    v["params"]["linear"]["weight"] = weight.at[:, 0].add(1.0)
    assert np.abs(FAST(SMALL, v, x)[0] - before).min(1).max() > 1e-3


def test_nlinear_refuses_empty_sizes_when_it_is_made():
    for sizes, words in [((0, 5, 5), "n_series=0"), ((1, 0, 5), "seq_len=0"), ((1, 5, 0), "pred")]:
        with pytest.raises(UserError, match=words):
            NLinear(*sizes)
