"""Finding, checking, reading and batching data. No method's own format lives here."""

from rflib.data.batches import Rows, in_order, masked_mean, pad_rows, permutation, shuffled
from rflib.data.dates import future_dates
from rflib.data.files import read_bytes, read_idx, read_npz, sha256
from rflib.data.find import Remote, cache_root, find
from rflib.data.series import Series, check_dates, check_series, read_series, select, write_series
from rflib.data.splits import Part, Parts, at_rows, by_share, random_split, starts
from rflib.data.standardise import Standardiser, fit_standardiser
from rflib.data.windows import window_count, windows

__all__ = [
    "Part",
    "Parts",
    "Remote",
    "Rows",
    "Series",
    "Standardiser",
    "at_rows",
    "by_share",
    "cache_root",
    "check_dates",
    "check_series",
    "find",
    "fit_standardiser",
    "future_dates",
    "in_order",
    "masked_mean",
    "pad_rows",
    "permutation",
    "random_split",
    "read_bytes",
    "read_idx",
    "read_npz",
    "read_series",
    "select",
    "sha256",
    "shuffled",
    "starts",
    "window_count",
    "windows",
    "write_series",
]
