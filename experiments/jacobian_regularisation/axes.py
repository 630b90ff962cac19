"""What all figures share: axes, and line styles that differ in grey."""

from typing import Any

LINES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "v", "D", "x")


def new_axes(rows: int = 1, columns: int = 1, *, width: float = 7.0, height: float = 4.4) -> Any:
    """(figure, axes [rows, columns])."""
    from matplotlib import pyplot

    size = {"figsize": (width, height), "layout": "constrained", "squeeze": False}
    figure, axes = pyplot.subplots(rows, columns, **size)
    for each in axes.ravel():
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def grey(place: int, count: int) -> str:
    """From black to a grey that still shows."""
    return f"{0.68 * place / max(count - 1, 1):.2f}"
