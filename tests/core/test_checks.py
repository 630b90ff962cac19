"""Checks let right values through unchanged and name what is wrong with the others."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rflib.core import checks, errors
from rflib.core.errors import UserError


@pytest.mark.parametrize("value", ["adam", "sgd"])
def test_one_of_returns_a_value_that_is_allowed(value):
    assert checks.one_of("optim.name", value, ["adam", "sgd"]) == value


def test_one_of_names_argument_value_all_allowed_and_the_nearest():
    with pytest.raises(UserError) as error:
        checks.one_of("optim.name", "adma", iter(["sgd", "adam"]))
    for part in ("optim.name", "'adma'", "'sgd', 'adam'", "did you mean 'adam'?"):
        assert part in str(error.value)
    with pytest.raises(UserError) as error:
        checks.one_of("layers", 7, [1, 2])
    assert "did you mean" not in str(error.value)


def test_choose_looks_up_and_lists_the_keys_of_the_table():
    table = {"relu": max, "abs": abs}
    assert checks.choose("activation", "abs", table) is abs
    with pytest.raises(UserError, match="activation='gelu' is not one of 'relu', 'abs'"):
        checks.choose("activation", "gelu", table)


@given(st.floats(), st.floats(-5, 5), st.floats(-5, 5), st.booleans(), st.booleans())
def test_in_range_accepts_exactly_the_interval(value, low, high, open_low, open_high):
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    ends = {"open_low": open_low, "open_high": open_high}
    if above and below:
        assert checks.in_range("x", value, low, high, **ends) == value
    else:  # NaN among them
        with pytest.raises(UserError, match="x="):
            checks.in_range("x", value, low, high, **ends)


def test_in_range_writes_the_interval_and_takes_whole_numbers():
    assert checks.in_range("rate", 1, 0, 1) == 1
    with pytest.raises(UserError, match=r"rate=2\.0 must lie in \(0\.0, 1\.0\]"):
        checks.in_range("rate", 2.0, 0.0, 1.0, open_low=True)
    with pytest.raises(UserError, match=r"rate=-1\.0 must lie in \[0\.0, inf\)"):
        checks.in_range("rate", -1.0, 0.0)
    with pytest.raises(UserError, match=r"rate=nan must lie in \(-inf, 1\.0\]"):
        checks.in_range("rate", math.nan, high=1.0)


@pytest.mark.parametrize("value", [1, 3, 3.0, np.int64(3), np.uint8(3), 10**30])
def test_positive_int_takes_whole_numbers_of_any_kind(value):
    result = checks.positive_int("steps", value)
    assert type(result) is int and result == value


@pytest.mark.parametrize(
    "value", [0, -1, 2.5, True, False, "3", None, math.nan, math.inf, -math.inf, np.float64(1.5)]
)
def test_positive_int_refuses_everything_else(value):
    with pytest.raises(UserError, match="steps="):
        checks.positive_int("steps", value)


def test_positive_int_takes_zero_only_when_told():
    assert checks.positive_int("every", 0, zero=True) == 0
    with pytest.raises(UserError, match="at least 0"):
        checks.positive_int("every", -1, zero=True)


@given(st.integers(1, 10_000), st.integers(1, 200))
def test_multiple_of_accepts_multiples_and_offers_its_neighbours(value, factor):
    if value % factor == 0:
        assert checks.multiple_of("steps", value, "scan", factor) == value
        return
    with pytest.raises(UserError) as error:
        checks.multiple_of("steps", value, "scan", factor)
    text = str(error.value)
    assert f"steps={value}" in text and f"scan={factor}" in text
    offers = [int(word) for word in text.rpartition("take ")[2].split(" or ")]
    assert offers and all(offer > 0 and offer % factor == 0 for offer in offers)
    assert all(abs(offer - value) < factor for offer in offers)


def test_distinct_refuses_none_and_repeated_ones():
    assert checks.distinct("seeds", [3, 1]) == (3, 1)
    for values in ((), (1, 2, 1)):
        with pytest.raises(UserError, match="seeds="):
            checks.distinct("seeds", values)


def test_nearest_puts_the_likest_first_and_drops_the_unlike():
    assert checks.nearest("leddan", ["leddam", "lednam", "glws"])[0] == "leddam"
    assert checks.nearest("leddan", ["glws"]) == []


def test_each_kind_of_error_has_the_exit_status_that_the_command_line_promises():
    status = {kind.__name__: kind.status for kind in errors.RflibError.__subclasses__()}
    assert status == {
        "UserError": 2,
        "NotFinite": 3,
        "Stopped": 4,
        "NoCheckpoint": 5,
        "Retraced": 1,
        "DryRun": 0,
    }
    assert issubclass(UserError, ValueError)


def test_positive_fields_names_the_first_that_is_wrong():
    class Sizes:
        rows, columns, empty = 3, 2, 0

    checks.positive_fields(Sizes, "rows", "columns")
    with pytest.raises(UserError, match="empty=0 must be a whole number of at least 1"):
        checks.positive_fields(Sizes, "rows", "empty")
