"""Calendar features of Informer (Zhou et al., AAAI 2021) against Python's datetime."""

import datetime

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.leddam.time_features import FEATURES, time_features


def by_datetime(stamp: datetime.datetime) -> list[float]:
    """From the standard library's calendar, one date at a time."""
    day_of_year = int(stamp.strftime("%j"))
    return [
        stamp.hour / 23 - 0.5,
        stamp.weekday() / 6 - 0.5,
        (stamp.day - 1) / 30 - 0.5,
        (day_of_year - 1) / 365 - 0.5,
    ]


@pytest.mark.parametrize(
    "start", ["2016-02-28T21", "1999-12-30T00", "1900-02-27T05", "1969-12-31T22"]
)
def test_features_equal_those_of_the_standard_librarys_calendar(start):
    dates = np.datetime64(start, "s") + np.arange(0, 400 * 24, 7) * np.timedelta64(1, "h")
    expected = [by_datetime(stamp) for stamp in dates.astype(object)]
    result = time_features(dates)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_features_span_minus_a_half_to_a_half_and_leap_days_reach_the_end():
    hours = np.arange(np.datetime64("2016-01-01T00"), np.datetime64("2017-01-01T00"))
    result = time_features(hours)
    np.testing.assert_array_equal(result.min(0), [-0.5] * len(FEATURES))
    np.testing.assert_array_equal(result.max(0), [0.5] * len(FEATURES))
    last_day_of_2017 = time_features(np.array(["2017-12-31"], "datetime64[s]"))[0]
    np.testing.assert_allclose(last_day_of_2017[3], 364 / 365 - 0.5, rtol=1e-6)


def test_minutes_do_not_count_and_units_and_shapes_do_not_matter():
    dates = np.array([["2020-05-04T13:00", "2020-05-05T00:00"]], "datetime64[m]")
    later = dates + np.timedelta64(59, "m")
    for unit in ("h", "m", "s", "ns"):
        result = time_features(later.astype(f"datetime64[{unit}]"))
        assert result.shape == (1, 2, 4)
        np.testing.assert_array_equal(result, time_features(dates))


def test_missing_dates_and_other_types_are_refused():
    with pytest.raises(UserError, match=r"dates\[1\] is missing"):
        time_features(np.array(["2020-01-01", "NaT"], "datetime64[s]"))
    with pytest.raises(UserError, match="int64 must be datetime64"):
        time_features(np.arange(3))
