"""The rows of the studies: forest fires, a set that ships, or a CSV file of your own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rflib.core import checks
from rflib.methods.jacobian_ntk import data as sets

NAMES = ("algerian", *sets.SETS, "generated")


def labelled(config: Any, run: Any) -> sets.Labelled:
    """The raw rows that `config.data` names; what was found is noted."""
    d = config.data
    checks.one_of("config.data.name", d.name, NAMES)
    checks.one_of("config.data.missing", d.missing, ("generate", "fail"))
    if is_own(d.path):
        raw = own(d.path, label=d.label, positive=d.positive, columns=d.columns)
    elif d.name == "algerian" or d.path:
        required = d.missing == "fail"
        raw = sets.algerian(d.path, region=d.region, required=required, notice=run.note)
    elif d.name == "generated":
        raw = sets.generated(244, 11, seed=d.split)
    else:
        raw = sets.shipped(d.name)
    mended = f", {raw.repairs} row mended" if raw.repairs else ""
    run.note(f"{raw.name}: {len(raw.x)} rows, d = {raw.x.shape[1]}, {raw.origin}{mended}")
    return raw


def is_own(path: str | Path) -> bool:
    """Whether the path is a file of one's own rather than the Algerian one or its directory."""
    file = Path(path).expanduser()
    return bool(path) and file.name != sets.ALGERIAN and not file.is_dir()


def own(
    path: str | Path, *, label: str = "", positive: str = "", columns: Sequence[str] = ()
) -> sets.Labelled:
    """A CSV file with a header. Labels that are numbers other than ±1 are standardised.

    Args:
        path: the file. label: the column of labels; "": the last one. positive: the cell that
        stands for +1; "": labels are numbers, of which 0 and 1 become ±1. columns: of the inputs.

    Raises:
        UserError: no such file, or as `rflib.methods.jacobian_ntk.data.read_table`.
    """
    raw = sets.read_table(path, label, features=columns, positive=positive)
    kinds = set(np.unique(raw.y).tolist())
    if kinds <= {-1.0, 1.0}:
        return raw
    y = 2 * raw.y - 1 if kinds <= {0.0, 1.0} else (raw.y - raw.y.mean()) / raw.y.std()
    return raw._replace(y=y)


def binary(y: np.ndarray) -> bool:
    """Whether all labels are ±1."""
    return set(np.unique(y).tolist()) <= {-1.0, 1.0}


def parts(config: Any, raw: sets.Labelled, rows: int, seed: int | None = None) -> sets.Split:
    """`rows` training rows, or all but a third if there are too few, and the rest as test rows."""
    d, most = config.data, len(raw.x)
    rows = checks.positive_int("rows", rows)
    return sets.split(
        raw,
        rows if rows < most else max(1, most - most // 3),
        seed=d.split if seed is None else seed,
        statistics=d.standardise,
        unit=d.unit,
    )


def first_rows(config: Any, raw: sets.Labelled, rows: int) -> np.ndarray:
    """The first `rows` inputs in the order of the split (all, if there are fewer)."""
    d, count = config.data, min(checks.positive_int("rows", rows), len(raw.x))
    found: Callable[..., sets.Split] = sets.split
    return found(raw, count, seed=d.split, statistics=d.standardise, unit=d.unit).x_train
