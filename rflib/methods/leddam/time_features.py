"""Calendar features of dates, for the forecasters that embed them.

Zhou et al., "Informer" (AAAI 2021), and the libraries that follow it, feed hourly series so.
"""

import numpy as np
from jaxtyping import Float

from rflib.core.errors import UserError

FEATURES = ("hour", "weekday", "day", "day of year")


def time_features(dates: np.ndarray) -> Float[np.ndarray, "*lead 4"]:
    """Hour, weekday, day of the month and day of the year, each scaled to [-.5, .5].

        hour / 23 - .5     weekday / 6 - .5 (Monday is 0)
        (day - 1) / 30 - .5     (day of year - 1) / 365 - .5

    Only the 31st of a month and the 366th day of a year reach .5 in the last two. Minutes and
    seconds are dropped, so rows of the same hour look alike.

    dates: datetime64 of any unit and shape [...]; the result is float32 [..., 4].

    Raises:
        UserError: other types, or a date that is missing (NaT).
    """
    dates = np.asarray(dates)
    if dates.dtype.kind != "M":
        raise UserError(f"dates of type {dates.dtype} must be datetime64")
    if np.isnat(dates).any():
        raise UserError(f"dates[{int(np.argmax(np.isnat(dates)))}] is missing (NaT)")
    hours, days = dates.astype("datetime64[h]"), dates.astype("datetime64[D]")
    months, years = dates.astype("datetime64[M]"), dates.astype("datetime64[Y]")
    weekday = (days.astype(np.int64) + 3) % 7  # 1970-01-01, day 0, was a Thursday
    columns = [
        (hours - days).astype(np.int64) / 23,
        weekday / 6,
        (days - months.astype(days.dtype)).astype(np.int64) / 30,
        (days - years.astype(days.dtype)).astype(np.int64) / 365,
    ]
    return (np.stack(columns, -1) - 0.5).astype(np.float32)
