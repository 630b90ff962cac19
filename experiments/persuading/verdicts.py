"""What the equilibria say: tables, the control, and claims C3 and C5."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.persuading import bootstrap, searching
from experiments.persuading.equilibria import best, verified
from rflib.methods.persuasion import pareto
from rflib.methods.persuasion.game import relative
from rflib.train.task import Metrics

STAGES = {"before": "as found", "after": "after snap"}
C3 = "the search finds local Nash equilibria, and certifies them exactly, in {}"
C5 = "extra-gradient on DNL finds local equilibria that Pareto-dominate {}"


def against_revelation(config: Any, game: Metrics, found: Mapping[str, Any] | None) -> pareto.Order:
    """How an equilibrium stands to full revelation; none found stands nowhere."""
    known, span = np.array(game["full_revelation"]), np.array(game["spans"])
    utilities = np.full(known.shape, -np.inf) if found is None else np.array(found["utilities"])
    with np.errstate(invalid="ignore"):
        return pareto.dominates(utilities, known, span, config.pareto.tau, config.pareto.tau_prime)


def table(config: Any, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """One row a method and stage, over games."""
    rows = []
    for method, title in searching.methods(config).items():
        for stage, words in STAGES.items():
            certified = [best(config, game, method, stage) for game in found.values()]
            orders = [
                against_revelation(config, game, each)
                for game, each in zip(found.values(), certified, strict=True)
            ]
            # Sums of utilities in spans: the ratio of two is not free of the utilities' zero, but
            # it is what one looks for first.
            ratios = [
                relative(np.array(each["utilities"]), np.array(game["spans"])).sum()
                / relative(np.array(game["full_revelation"]), np.array(game["spans"])).sum()
                for game, each in zip(found.values(), certified, strict=True)
                if each is not None
            ]
            own = [game["methods"][method] for game in found.values()]
            settled = [each["settled"] for each in own if each["settled"] is not None]
            gaps = [each["gap"] for each in certified if each is not None]
            known = [gap for gap in gaps if gap is not None]
            least = [
                float(order.least)
                for order, each in zip(orders, certified, strict=True)
                if each is not None
            ]
            ends = {
                "ends that dominate": _mean([each["dominate"] for each in own]),
                "ends that pass": _mean(
                    [each["closed_form"] for each in own if each["closed_form"] is not None]
                ),
                "starts settled": _mean(settled),
            }
            rows.append(
                {
                    "method": title,
                    "stage": words,
                    "games with a certified local equilibrium": _mean(
                        [each is not None for each in certified]
                    ),
                    "weakly above full revelation": _mean([bool(o.weak) for o in orders]),
                    "dominates it": _mean([bool(o.strict) for o in orders]),
                    "every sender gains": _mean([bool(o.all_strict) for o in orders]),
                    "least gain over it": _mean(least),
                    "hypervolume above it": _mean(
                        [_volume(config, game, method, stage) for game in found.values()]
                    ),
                    "sum of utilities over full revelation's": _mean(ratios),
                    "largest global gain, median": float(np.median(known)) if known else None,
                    "exact Nash": _mean([gap <= 1e-9 for gap in known]),
                }
                | (ends if stage == "before" else dict.fromkeys(ends))
                | {"snap settled": _settled(own) if stage == "after" else None}
            )
    return rows


def _settled(own: Sequence[Metrics]) -> float | None:
    """The share of snapped profiles from which no sender wants to move on."""
    return _mean([each["after"]["settled"] for game in own for each in game["found"]])


def _volume(config: Any, game: Metrics, method: str, stage: str) -> float:
    """Of what the certified local equilibria dominate above full revelation, in spans."""
    found = verified(config, game, method, stage)
    span, known = np.array(game["spans"]), np.array(game["full_revelation"])
    points = np.array([each["utilities"] for each in found]).reshape(-1, len(span))
    # A certified profile reaches the utopia point at most; rounding may add to it.
    top = np.maximum(np.array(game["utopia"]), points.max(0, initial=-np.inf))
    return pareto.hypervolume(points, known, top, span)


def _mean(values: Sequence[Any]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def game_table(config: Any, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """One row a game: what full revelation gives, and the best certified sums, in spans."""
    rows = []
    for name, game in found.items():
        span = np.array(game["spans"])

        def total(utilities: Any, span: np.ndarray = span) -> float:
            return float(relative(np.array(utilities), span).sum())

        row: dict[str, Any] = {
            "game": name,
            "full revelation": total(game["full_revelation"]),
            "silence": total(game["no_information"]),
            "utopia": total(game["utopia"]),
            "mediated bound on the least gain": game["possible_gain"],
        }
        for method, title in searching.methods(config).items():
            each = best(config, game, method, "after")
            row[title] = None if each is None else total(each["utilities"])
        rows.append(row)
    return rows


def control_table(config: Any, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """The grid of radii and tolerances: who passes the local test, and how often chance does."""
    rows = []
    methods = searching.methods(config)
    for d, delta in enumerate(config.verify.deltas):
        for r, ratio in enumerate(config.verify.ratios):
            row: dict[str, Any] = {
                "radius": delta,
                "tolerance over radius": ratio,
                "random profiles": float(
                    np.mean([game["null"]["rates"][d][r] for game in found.values()])
                ),
            }
            for method, title in methods.items():
                for stage, words in STAGES.items():
                    passes = [
                        each[stage]["passes"][d][r]
                        for game in found.values()
                        for each in game["methods"][method]["found"]
                        if each[stage]["kind"] != "sampled"
                    ]
                    row[f"{title}, {words}"] = _mean(passes)
            rows.append(row)
    return rows


def state(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    """Tables and claims of the equilibria."""
    delta, ratio = config.verify.delta, config.verify.ratio
    run.table(
        "equilibria",
        table(config, found),
        caption=f"The best local equilibrium of each method and game: gain within {delta:g} "
        f"(maximum norm) at most {ratio * delta:g} spans, certified exactly, largest sum of "
        "utilities, of the best few of all ends (and seeds). Shares of all games; the least gain "
        "(in spans, over senders), the ratio of sums, the global gain and 'exact Nash' are over "
        "games with such an equilibrium. Ends: shares of all of them, before any selection; those "
        "that pass the same test are known with two states and two signals only. Snap settled: of "
        "all snapped profiles. In equilibria/: the best ones for `certify`, and all of them.",
    )
    run.table(
        "equilibria_games",
        game_table(config, found),
        caption="Sums of the senders' utilities in their spans, after snap. Utopia: each sender's "
        "optimum if the others are silent.",
    )
    run.table(
        "control",
        control_table(config, found),
        caption="Share of exactly certified profiles that pass the local test. 'random profiles' "
        "are drawn and tested as they are; all others are the best few of many, those that pass "
        "first, 'random profiles (control)' too: compare the methods with that one.",
    )
    _c3(config, run, found)
    _c5(config, run, found)


def _c3(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    """Whether equilibria are found; and more often than by chance, with the same selection.

    A random profile is no measure of that by itself: the best of many, moved by `snap`, passes
    where it does not. The control therefore is the method `random`, which is selected, moved and
    certified as all others are.
    """
    method, resamples = config.search.kinds[0], config.expect.bootstrap
    d = list(config.verify.deltas).index(config.verify.delta)
    r = list(config.verify.ratios).index(config.verify.ratio)
    chance = np.mean([game["null"]["rates"][d][r] for game in found.values()])

    def having(method: str, stage: str) -> np.ndarray:
        each = [best(config, game, method, stage) for game in found.values()]
        return np.array([float(one is not None) for one in each])

    own = bootstrap.over_games(having(method, "after").tolist(), resamples)
    verdict, reason = bootstrap.above([own], config.expect.majority)
    run.claim(
        "C3",
        C3.format("most games, after snap"),
        measured=f"{own}; {chance:.2f} of single random profiles pass",
        unit="share of games, 95 % interval over games",
        verdict=verdict,
        reason=reason,
    )
    for stage, words in STAGES.items():
        name = f"C3 control {words}"
        text = C3.format(f"more games than the best of as many random starts, {words}")
        if "random" not in config.search.baselines:
            run.claim(name, text, measured=None, verdict="undecided",
                      reason="config.search.baselines leaves 'random' out")  # fmt: skip
            continue
        shares = having(method, stage), having("random", stage)
        effect = bootstrap.over_games((shares[0] - shares[1]).tolist(), resamples)
        verdict, reason = bootstrap.above([effect])
        run.claim(
            name,
            text,
            measured=f"{shares[0].mean():.2f} against {shares[1].mean():.2f}, difference {effect}",
            unit="share of games, 95 % interval over games",
            verdict=verdict,
            reason=reason,
        )


def _c5(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    if "dnl" not in config.search.kinds:
        run.claim("C5", C5.format("full revelation"), measured=None, verdict="undecided",
                  reason="DNL is not searched")  # fmt: skip
        return
    for stage, words in STAGES.items():
        suffix = "" if stage == "after" else f" {words}"
        possible = [game for game in found.values() if game["possible"]]
        text = f"{C5.format('full revelation')} in most games where anything does, {words}"
        if not possible:
            run.claim(f"C5{suffix}", text, measured=None, verdict="undecided",
                      reason="full revelation cannot be dominated in any of the games")  # fmt: skip
            continue
        wins = [
            float(against_revelation(config, game, best(config, game, "dnl", stage)).strict)
            for game in possible
        ]
        effect = bootstrap.over_games(wins, config.expect.bootstrap)
        verdict, reason = bootstrap.above([effect], config.expect.majority)
        run.claim(
            f"C5{suffix}",
            text,
            measured=str(effect),
            unit=f"share of {len(possible)} games of {len(found)}, 95 % interval over games",
            verdict=verdict,
            reason=reason,
        )
    for other in config.search.kinds:
        if other != "dnl":
            _against(config, run, found, other)
    for other in ("annealed", "zeroth", "iterated"):
        if other in config.search.baselines:
            _against(config, run, found, other)


def _ends(found: Mapping[str, Metrics], method: str) -> str:
    """How many ends a game, over all seeds, the best was chosen from: more are an advantage."""
    return f"{np.mean([game['methods'][method]['ends'] for game in found.values()]):.0f}"


def _against(config: Any, run: Any, found: Mapping[str, Metrics], other: str) -> None:
    """DNL's best against another method's, by Pareto order and by the sum of utilities."""
    titles = searching.methods(config)
    results, sums = [], []
    for game in found.values():
        own, rival = (best(config, game, method, "after") for method in ("dnl", other))
        span = np.array(game["spans"])
        sets = [
            np.empty((0, len(span))) if each is None else np.array([each["utilities"]])
            for each in (own, rival)
        ]
        results.append(
            pareto.compare(sets[0], sets[1], span, config.pareto.tau, config.pareto.tau_prime)
        )
        if own is not None and rival is not None:
            gain = np.array(own["utilities"]) - np.array(rival["utilities"])
            sums.append(relative(gain, span).sum())
    score = [{"win": 1.0, "tie": 0.0, "loss": -1.0}[each] for each in results]
    effect = bootstrap.over_games(score, config.expect.bootstrap)
    verdict, reason = bootstrap.above([effect])
    total = bootstrap.over_games(sums, config.expect.bootstrap) if sums else "none on both sides"
    counts = ", ".join(f"{results.count(word)} {word}" for word in ("win", "tie", "loss"))
    matched = other in config.search.kinds
    if matched and not other.endswith("-matched"):
        verdict, reason = "undecided", "not of as many parameters"
    run.claim(
        f"C5 {'' if matched else 'control '}{other}",
        C5.format(f"those of: {titles[other]}"),
        measured=f"{counts}; score {effect}; sum of utilities {total}; of {_ends(found, 'dnl')} "
        f"ends a game against {_ends(found, other)}",
        unit="Pareto order of the best certified ones a game (win 1, loss -1) and difference in "
        "spans, 95 % intervals over games",
        verdict=verdict,
        reason=reason,
    )
