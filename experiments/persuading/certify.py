"""The verb `certify`: is a user's profile stable, without training anything?

Imports NumPy and SciPy only: the answer on a small game comes within three seconds.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rflib.core.checks import in_range
from rflib.core.errors import UserError
from rflib.methods.persuasion import certificate as certificates
from rflib.methods.persuasion.certificate import Certificate, Gain, NullControl
from rflib.methods.persuasion.data import read_game, read_policies
from rflib.methods.persuasion.game import (
    TOLERANCE,
    Game,
    full_revelation,
    full_revelation_is_equilibrium,
    no_information,
)
from rflib.methods.persuasion.mediated import dominance_possible, utopia
from rflib.methods.persuasion.pareto import Order, dominates
from rflib.run.files import write_json


def certify(
    *,
    game: str | Path,
    policies: str | Path,
    tie: str = "sum",
    deltas: str = "0.01,0.05,0.2",
    ratios: str = "0.01,0.05,0.1,0.5",
    norm: str = "inf",
    deviations: str = "1000",
    exact_cap: str = "5000",
    global_cap: str = "5000",
    null: str | None = None,
    seed: str = "0",
    output: str | None = None,
) -> None:
    """Prints the certificate of a profile, and writes it as JSON if there is an `output`.

    The arguments are text, as flags give them; see `experiments.persuading.verbs`.

    Raises:
        UserError: a file that cannot be read, or a value that is not allowed, by its name.
    """
    played = read_game(game)
    profile = read_policies(policies, played)
    grid: Any = {"deltas": _numbers("deltas", deltas), "ratios": _numbers("ratios", ratios)}
    draw = _whole("seed", seed)
    tried, cap = _whole("deviations", deviations, 4), _whole("exact_cap", exact_cap)
    found = certificates.certify(
        played, profile, tie=tie, norm=norm, deviations=tried, seed=draw, local_cap=cap,
        global_cap=_whole("global_cap", global_cap, 1), **grid,
    )  # fmt: skip
    fast = played.n_states == 2 and set(played.signals) == {2} and cap > 0 and norm == "inf"
    count = (200 if fast else 10) if null is None else _whole("null", null)
    control = None
    if count:
        control = certificates.null_control(
            played, count=count, tie=tie, norm=norm, seed=draw, cap=cap, deviations=tried, **grid
        )
    order = dominates(found.utilities, full_revelation(played, tie).utilities, found.spans)
    lines = list(_page(played, found, control, order))
    if output is not None:
        record = {"game": played._asdict(), **certificates.as_record(found)}
        record["null"] = None if control is None else control._asdict()
        record |= {"against_full_revelation": order._asdict(), "verdict": lines[-3:]}
        write_json(Path(output), record)
        lines.append(f"written: {output}")
    print("\n".join(lines))


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--{name}={text} must be numbers with commas between them") from None


def _whole(name: str, text: str, least: int = 0) -> int:
    try:
        value = int(text)
    except ValueError:
        raise UserError(f"--{name}={text} must be a whole number") from None
    return int(in_range(f"--{name}", value, least))


def _number(value: float) -> str:
    if np.isnan(value):
        return "?"
    return f"{0.0 if abs(value) < 1e-12 else value:.6g}"  # less is rounding


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    width = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        first, *rest = (
            cell.ljust(width[k]) if k == 0 else cell.rjust(width[k]) for k, cell in enumerate(row)
        )
        yield "  " + "  ".join([first, *rest]).rstrip()


def _page(
    game: Game,
    found: Certificate,
    control: NullControl | None,
    order: Order,
) -> Iterator[str]:
    """The lines to print; the last three are the verdict."""
    yield (
        f"{game.name}: {game.n_senders} senders, {game.n_states} states, {game.n_actions} actions, "
        f"{'x'.join(map(str, game.signals))} signals; ties: {found.tie}"
    )
    yield from _values(game, found)
    yield from _signals(game, found)
    yield from _gains(found)
    yield from _grid(found, control)
    yield from _deviation(found)
    yield ""
    yield _dominance(game, found, order)
    yield _local_verdict(found, control)
    yield _verdict(found)


def _values(game: Game, found: Certificate) -> Iterator[str]:
    revealed, silent = full_revelation(game, found.tie), no_information(game, found.tie)
    names = [f"sender {j}" for j in range(game.n_senders)]
    rows = [["utility", *names, "receiver"]]
    for name, values, receiver in (
        ("this profile", found.utilities, found.receiver),
        ("full revelation", revealed.utilities, revealed.receiver),
        ("no information", silent.utilities, silent.receiver),
        ("best alone", utopia(game), None),
        ("span", found.spans, None),
    ):
        last = "" if receiver is None else _number(float(receiver))
        rows.append([name, *(_number(float(value)) for value in values), last])
    yield from _table(rows)
    if not full_revelation_is_equilibrium(game):
        yield "  (fewer than two senders are able to reveal the state: a value to compare with)"


def _signals(game: Game, found: Certificate) -> Iterator[str]:
    yield ""
    rows = [["joint signal", "action", "probability", "margin"]]
    for place, signal in enumerate(np.ndindex(*game.signals)):
        if found.probabilities[place] > 0:
            numbers = map(_number, (found.probabilities[place], found.margins[place]))
            rows.append([",".join(map(str, signal)), str(found.actions[place]), *numbers])
    shown = [rows[0], *sorted(rows[1:], key=lambda row: float(row[3]))[:16]]
    yield from _table(shown)
    if len(rows) > len(shown):
        yield f"  (the {len(shown) - 1} closest to a cliff of {len(rows) - 1} that are sent)"
    yield f"  smallest margin (distance from a cliff): {_number(found.cliff)}"


def _cell(gain: Gain) -> str:
    mark = {"sampled": " >=", "upper bound": " <="}.get(gain.kind, "")
    return f"{mark} {_number(gain.gain)} ({_number(gain.relative)})".strip()


def _gains(found: Certificate) -> Iterator[str]:
    yield ""
    rows = [["gain (in spans)", *(f"sender {j}" for j in range(len(found.utilities))), "kind"]]
    named = [(f"within {d:g}", row) for d, row in zip(found.deltas, found.local, strict=True)]
    for name, gains in [*named, ("by any policy", found.best)]:
        kinds = "/".join(dict.fromkeys(gain.kind for gain in gains))
        rows.append([name, *map(_cell, gains), kinds])
    yield from _table(rows)
    for why in dict.fromkeys(gain.message for row in (*found.local, found.best) for gain in row):
        if why:
            yield f"  ({why})"


def _grid(found: Certificate, control: NullControl | None) -> Iterator[str]:
    yield ""
    rows = [["passes at epsilon/delta", *(f"{ratio:g}" for ratio in found.ratios)]]
    for d, delta in enumerate(found.deltas):
        cells = ["yes" if passed else "no" for passed in found.passes[d]]
        if control is not None:
            cells = [f"{c} ({rate:.0%})" for c, rate in zip(cells, control.rates[d], strict=True)]
        rows.append([f"delta {delta:g}", *cells])
    yield from _table(rows)
    if control is not None:
        yield f"  (in brackets: of {control.count} random profiles, {control.kind})"


def _largest(gains: Sequence[Gain]) -> Gain:
    return max(gains, key=lambda gain: -np.inf if np.isnan(gain.relative) else gain.relative)


def _deviation(found: Certificate) -> Iterator[str]:
    worst = _largest(found.best)
    if worst.policy is None or worst.attained <= certificates.SETTLED:
        return
    yield ""
    yield (
        f"best deviation of sender {worst.sender}, which gains {_number(worst.attained)} "
        "(rows: states, columns: signals):"
    )
    for row in worst.policy:
        yield "  " + "  ".join(f"{value:.6f}" for value in row)


def _dominance(game: Game, found: Certificate, order: Order) -> str:
    possible = dominance_possible(game, found.tie)
    bound = (
        f"at most {_number(possible.gain)} spans for every sender are possible at all"
        if possible.possible
        else "no outcome is better for every sender"
    )
    how = (
        "dominates it strictly for every sender" if order.all_strict
        else "dominates it" if order.strict
        else "is as good" if order.weak
        else f"does not dominate it (a sender loses {_number(-float(order.least))} spans)"
    )  # fmt: skip
    return f"Against full revelation: this profile {how}; {bound}."


def _local_verdict(found: Certificate, control: NullControl | None) -> str:
    worst = [_largest(row) for row in found.local]
    parts = [
        f"{_number(g.relative)} within {d:g}" for d, g in zip(found.deltas, worst, strict=True)
    ]
    kinds = {gain.kind for row in found.local for gain in row}
    known = "exactly" if kinds == {"exact-local"} else "at least, by sampling"
    nearly = ""
    if control is not None and control.rates.min() > 0.5:
        nearly = " Most random profiles pass this test, so that passing says little."
    return f"Locally: the largest gain, in spans, is {', '.join(parts)} ({known}).{nearly}"


def _verdict(found: Certificate) -> str:
    worst = _largest(found.best)
    tied = (
        f" It lies on a tie: this holds for ties '{found.tie}'." if found.cliff <= TOLERANCE else ""
    )
    if found.equilibrium:
        return f"Nash equilibrium ({found.kind}): no deviation of any sender gains.{tied}"
    if found.equilibrium is None:
        unknown = [str(gain.sender) for gain in found.best if gain.kind != "exact-global"]
        return (
            f"Not decided whether it is a Nash equilibrium: sender {', '.join(unknown)} unverified."
        )
    return (
        f"Not a Nash equilibrium ({found.kind}): sender {worst.sender} gains up to "
        f"{_number(worst.gain)} ({_number(worst.relative)} of its span).{tied}"
    )
