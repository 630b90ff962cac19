"""The paper's claims C1 to C7 and what a run says of them: verdicts from the numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.jacobian_regularisation import kernel_init
from experiments.jacobian_regularisation.constancy import Constancy
from experiments.jacobian_regularisation.dynamics import Dynamics, Width
from experiments.jacobian_regularisation.features import correlations
from experiments.jacobian_regularisation.kernel_init import Slope, slope
from experiments.jacobian_regularisation.spectrum import EPS

TEXTS = {
    "C1": "at initialisation f and its input-Jacobian converge jointly to a Gaussian process",
    "C2": "the limit covariance is the inductive Jacobian NNGP kernel: derivatives of the NNGP's",
    "C3 start": "the JNTK of a network converges at initialisation to a deterministic limit",
    "C3 training": "and stays near it during robust training, the nearer the wider the network",
    "C4": "robust training follows a linear first-order equation; it ends in a kernel regressor",
    "C5": "finite networks agree with the limit increasingly well as the width grows",
    "C6 accuracy": "with the penalty accurate eigen-features are the robust ones (share of right "
    "signs); with the plain NTK there is little such link",
    "C6 usefulness": "the same with usefulness, the mean of y f / rms(f), for accuracy",
    "C7": "full rank is more fragile for the JNTK than for the NTK: its smallest eigenvalue is "
    "below the NTK's at every depth, and takes deeper networks to reach the same",
    "C7 depth": "the JNTK has full rank only in deep networks (GeLU from 11, erf from 6 layers)",
}  # fmt: skip


def state(config: Any, run: Any, found: Mapping[str, Any]) -> None:
    """Records every claim; one whose study was not run is undecided."""
    stated = set()

    def claim(name: str, **said: Any) -> None:
        stated.add(name)
        run.claim(name, TEXTS[name], **said)

    if "kernel_init" in found:
        _at_start(config, run, claim, found["kernel_init"])
    if "constancy" in found:
        _in_training(config, claim, found["constancy"])
    if "dynamics" in found:
        _trajectories(config, run, claim, found["dynamics"])
    if found.get("features"):
        _features(config, claim, found["features"])
    if "spectrum" in found:
        _spectrum(config, run, claim, found["spectrum"])
    for name, text in TEXTS.items():
        if name not in stated:
            run.claim(name, text, measured=None, verdict="undecided",
                      reason="the study that decides it is not among config.exp, or its data "
                      "have no labels +1 and -1")  # fmt: skip


def verdict(holds: bool) -> str:
    """ "holds" or "refuted"."""
    return "holds" if holds else "refuted"


def within(slope: Slope, bounds: Sequence[float]) -> bool:
    """Whether the fitted slope lies in the bounds."""
    return bounds[0] <= slope.slope <= bounds[1]


def _shown(slope: Slope) -> str:
    return f"{slope.slope:.2f} [{slope.slope_low:.2f}, {slope.slope_high:.2f}]"


def slopes_verdict(slopes: Sequence[Slope], bounds: Sequence[float]) -> tuple[str, str]:
    """(verdict, reason): errors must fall at every width, with slopes within the bounds.

    A slope out of bounds whose band reaches into them decides nothing.
    """
    if all(within(each, bounds) and each.falling for each in slopes):
        return "holds", ""
    for each in slopes:
        if not within(each, bounds):
            if each.slope_low <= bounds[1] and each.slope_high >= bounds[0]:
                continue
            return "refuted", ""
    return "undecided", "a slope is out of bounds but its band is not, or an error does not fall"


def falling_verdict(slope: Slope, bound: float) -> tuple[str, str]:
    """(verdict, reason): an error must fall with the width at least as steeply as `bound`."""
    if slope.slope_high < bound:
        return "holds", ""
    if slope.slope_low > bound:
        return "refuted", ""
    return "undecided", f"the band of the slope includes {bound:g}"


def _at_start(config: Any, run: Any, claim: Any, found: Mapping[str, Any]) -> None:
    bounds = tuple(config.expect.slope)
    slopes = kernel_init.slopes(config, found)
    largest = kernel_init.slopes(config, found, "max")
    smallest = kernel_init.smallest(config)
    table = [
        {"kernel": kernel, "depth": depth, "error": what, "slope": each.slope,
         "slope_low": each.slope_low, "slope_high": each.slope_high, "falling": each.falling,
         "smallest_eigenvalue": smallest[kernel, depth],
         "width_for_smallest": each.law.width(smallest[kernel, depth])}
        for what, group in (("rms", slopes), ("max", largest))
        for (kernel, depth), each in group.items()
    ]  # fmt: skip
    run.table("slopes", table, caption="Fitted slopes of log mean error on log width, 95 % "
              "bootstrap bands; the width at which the fitted error is as small as the smallest "
              "eigenvalue of the limit, which proofs of convergence ask for.")  # fmt: skip
    draws = sorted(
        (m for m in found.values() if m["kind"] == "draws"), key=lambda each: each["width"]
    )
    nngp = [each for (kernel, _), each in slopes.items() if kernel == "jnngp"]
    word, reason = slopes_verdict(nngp, bounds)
    first, last = draws[0], draws[-1]
    calm = abs(last["kurtosis"]) < max(abs(first["kurtosis"]), 3 * last["kurtosis_error"])
    if word == "holds" and not calm:
        word, reason = "refuted", ""
    claim(
        "C1",
        measured=f"slopes {', '.join(map(_shown, nngp))}; excess kurtosis "
        + " -> ".join(f"{each['kurtosis']:.3f} (n = {each['width']})" for each in draws),
        unit="d log rms error / d log width at L = "
        + ", ".join(map(str, config.kernel_init.depths)),
        paper="-0.5",
        verdict=word,
        reason=reason,
    )
    relative = found["derivatives"]["relative"]
    claim(
        "C2",
        measured=f"{relative:.1e} from automatic differentiation; covariance over "
        f"{config.kernel_init.draws} networks of width {last['width']} within "
        f"{last['covariance']:.1%}, where sampling alone gives {last['sampling']:.1%}",
        unit="relative difference",
        verdict=verdict(
            relative < config.expect.exact
            and last["covariance"] < config.expect.noise * last["sampling"]
        ),
    )
    jntk = [each for (kernel, _), each in slopes.items() if kernel == "jntk"]
    word, reason = slopes_verdict(jntk, bounds)
    claim(
        "C3 start",
        measured=", ".join(map(_shown, jntk)),
        unit="d log rms error / d log width at L = "
        + ", ".join(map(str, config.kernel_init.depths)),
        paper="-0.5",
        verdict=word,
        reason=reason,
    )


def _in_training(config: Any, claim: Any, found: Constancy) -> None:
    resamples = config.kernel_init.resamples
    gaps = found.rms.mean(2)  # [widths, steps]
    monotone = bool(np.all(np.diff(gaps, axis=0) < 0))
    entries = bool(np.all(np.diff(found.largest.mean(2), axis=0) < 0))
    bound = config.expect.slope[1]
    worst = slope(found.widths, found.rms.max(1), resamples=resamples)
    first = slope(found.widths, found.rms[:, 0], resamples=resamples)
    moved = slope(found.widths, found.moved[:, -1], resamples=resamples)
    word, reason = falling_verdict(worst, bound)
    if word == "holds" and not monotone:
        word, reason = "undecided", "at some step the gap does not fall with every width"
    ends = found.moved[:, -1].mean(1)
    claim(
        "C3 training",
        measured=f"gap at all {len(found.steps)} steps "
        f"{'falls' if monotone else 'does not fall'} with every width (its largest entry "
        f"{'too' if entries else 'does not'}); slope of the largest one "
        f"{_shown(worst)}, at step 0 {_shown(first)}; weights move {ends[0]:.1e} -> "
        f"{ends[-1]:.1e} (slope {moved.slope:.2f})",
        unit=f"rms gap over kappa^2, n = {found.widths[0]} to {found.widths[-1]}",
        verdict=word,
        reason=reason,
    )


def last_deviations(found: Dynamics) -> dict[str, np.ndarray]:
    """Deviations at the last step [widths, R] by name."""
    each = [width.deviation() for width in found.widths]
    return {name: np.stack([one[name][-1] for one in each]) for name in each[0]}


def _trajectories(config: Any, run: Any, claim: Any, found: Dynamics) -> None:
    widths = [each.width for each in found.widths]
    gaps = last_deviations(found)
    slopes = {
        name: slope(widths, gap, resamples=config.kernel_init.resamples)
        for name, gap in gaps.items()
    }
    run.table(
        "deviations",
        [
            {"deviation": name, "width": width, "mean": each.error[i], "low": each.low[i],
             "high": each.high[i], "slope": each.slope, "slope_low": each.slope_low,
             "slope_high": each.slope_high}
            for name, each in slopes.items()
            for i, width in enumerate(widths)
        ],
        caption="Network less limit after the last step, root mean square over rows; means over "
        "networks with 95 % bootstrap bands.",
    )  # fmt: skip
    falling = {name: each.falling for name, each in slopes.items()}
    enough = found.condition * EPS < 1e-3
    exact = found.closed_form < max(1e-6, 10 * found.condition * EPS)
    follows = all(each.slope_high < 0 and each.falling for each in slopes.values())
    claim(
        "C4",
        measured="; ".join(
            f"{name.replace('_', ' ')} {each.error[0]:.3f} -> {each.error[-1]:.4f}"
            for name, each in slopes.items()
        )
        + f"; end against K(x, X) K^-1 Y: {found.closed_form:.1e}",
        unit=f"rms deviation after {found.steps[-1]} steps, n = {widths[0]} to {widths[-1]}",
        verdict=verdict(follows and exact) if enough or not follows else "undecided",
        reason="" if enough or not follows else "the kernel is too ill-conditioned to be inverted",
    )
    wide: Width = found.widths[-1]
    agree = float(wide.agree.mean())
    least = config.expect.agree
    claim(
        "C5",
        measured=f"deviations fall with every width: {', '.join(_names(falling))}; sign of test "
        f"predictions agrees on {agree:.1%} of {wide.test.shape[2]} rows at n = {wide.width}",
        unit=f"share of test rows (> {least:.0%})",
        verdict=verdict(all(falling.values()) and agree > least),
    )


def _names(flags: Mapping[str, bool]) -> list[str]:
    return [f"{name.replace('_', ' ')} {'yes' if flag else 'no'}" for name, flag in flags.items()]


def link_verdict(rows: Sequence[Mapping[str, Any]], weak: float) -> tuple[str, str]:
    """(verdict, reason) from correlations of the JNTK and of the NTK, with their intervals.

    rows: of one definition and form, lam = 0 being the NTK. It holds if every JNTK interval lies
    above 0 and every NTK interval below `weak`; it is refuted if a JNTK interval lies below 0 or
    an NTK one above `weak`.
    """
    with_penalty = [row for row in rows if row["lam"]]
    plain = [row for row in rows if not row["lam"]]
    if not with_penalty or not plain:
        return "undecided", "needs the plain NTK and a penalty"
    if any(not np.isfinite(row["correlation"]) for row in rows):
        return "undecided", "too few features tell the classes apart"
    if all(row["low"] > 0 for row in with_penalty) and all(row["high"] < weak for row in plain):
        return "holds", ""
    if any(row["high"] < 0 for row in with_penalty) or any(row["low"] > weak for row in plain):
        return "refuted", ""
    return "undecided", "intervals include 0 (penalty) or the bound of a weak link (plain NTK)"


def _features(config: Any, claim: Any, found: Mapping[str, Any]) -> None:
    lam = config.features.attack_lam
    table = [
        row for row in correlations(found)
        if row["form"] == "first order" and row["features"] == "telling" and row["lam"] in (0, lam)
    ]  # fmt: skip
    for definition in ("accuracy", "usefulness"):
        rows = [row for row in table if row["definition"] == definition]
        word, reason = link_verdict(rows, config.expect.weak)
        measured = ", ".join(
            f"{'JNTK' if row['lam'] else 'NTK'} {row['activation']} L={row['depth']} "
            f"{row['correlation']:.2f} [{row['low']:.2f}, {row['high']:.2f}] ({row['count']})"
            for row in rows
        )
        claim(f"C6 {definition}", measured=measured, verdict=word, reason=reason,
              unit=f"Spearman with its robust version, lam = {lam:g} (features)")  # fmt: skip


def first_positive(m: Mapping[str, Any], floor: Any = 0.0, kernel: str = "jntk") -> int | None:
    """The first depth from which on λ_min stays above `floor` (a number, or one a depth)."""
    above = np.asarray(m[kernel], float) > floor
    last = np.flatnonzero(~above)
    place = int(last[-1]) + 1 if len(last) else 0
    return m["depths"][place] if place < len(above) else None


def deeper(plain: int | None, with_slopes: int | None) -> bool:
    """Whether the second depth is greater; None is deeper than all that were tried."""
    return plain is not None and (with_slopes is None or with_slopes > plain)


def _depth(value: int | None) -> str:
    return "none tried" if value is None else str(value)


def _spectrum(config: Any, run: Any, claim: Any, found: Mapping[str, Any]) -> None:
    exact = {m["activation"]: m for m in found.values() if m["kind"] == "exact"}
    positive = dict(map(tuple, config.expect.positive))
    ratios = {
        name: np.array(m["ntk"]) / np.maximum(m["jntk"], EPS * np.array(m["largest"]))
        for name, m in exact.items()
    }
    enough = config.expect.resolution
    needed = {
        name: [first_positive(m, enough, kernel) for kernel in ("ntk", "jntk")]
        for name, m in exact.items()
    }
    claim(
        "C7",
        measured=", ".join(
            f"{name}: ratio {r.min():.2g} to {r.max():.2g}, above {enough:g} from L = "
            f"{_depth(needed[name][0])} (NTK), {_depth(needed[name][1])} (JNTK)"
            for name, r in ratios.items()
        ),
        unit=f"smallest eigenvalue of NTK over JNTK, L = {config.spectrum.depths[0]} to "
        f"{config.spectrum.depths[-1]}",
        verdict=verdict(
            all(bool(np.all(r > 1)) for r in ratios.values())
            and all(deeper(plain, with_slopes) for plain, with_slopes in needed.values())
        ),
    )
    table, said, verdicts = [], [], []
    for name, m in exact.items():
        rounding = 100 * EPS * np.array(m["largest"])
        row = {"activation": name, "paper": positive.get(name), "float64": first_positive(m)}
        row["float64, above rounding"] = first_positive(m, rounding)
        for kind in ("single", "few", "joint", "pairs"):
            if f"{kind}-{name}" in found:
                row[LABELS[kind]] = first_positive(found[f"{kind}-{name}"])
        row[f"above {config.expect.resolution:g}"] = first_positive(m, config.expect.resolution)
        table.append(row)
        said.append(f"{name}: " + ", ".join(
            f"{key} {'never' if value is None else value}" for key, value in row.items()
            if key not in ("activation", "paper")))  # fmt: skip
        if name in positive:
            verdicts.append(depth_verdict(m["depths"], row["float64, above rounding"],
                                          positive[name]))  # fmt: skip
    run.table("full_rank", table, caption="First depth from which on the smallest eigenvalue of "
              "the JNTK stays positive (or above a threshold), by arithmetic; few, joint and pairs "
              f"on {config.spectrum.sampled_rows} rows.")  # fmt: skip
    decided = [word for word in verdicts if word != "undecided"]
    word = "undecided" if not decided else "refuted" if "refuted" in decided else "holds"
    claim(
        "C7 depth",
        measured="; ".join(said),
        unit="first depth from which on it is positive",
        paper=", ".join(f"{name} {depth}" for name, depth in positive.items()),
        verdict=word,
        reason="" if decided else "needs an activation of the paper, at its depth and below",
    )


def depth_verdict(depths: Sequence[int], found: int | None, paper: int) -> str:
    """Whether full rank begins at the first depth tried from the paper's on.

    found: the depth at which it begins. Below the paper's depth it refutes the claim, whatever else
    was tried; otherwise depths on both sides of the paper's are needed.
    """
    if found is not None and found < paper:
        return "refuted"
    deep = [depth for depth in depths if depth >= paper]
    if not deep or min(depths) >= paper:
        return "undecided"
    return verdict(found == min(deep))


LABELS = {
    "single": "float32",
    "few": "float64, few rows",
    "joint": "Monte Carlo, joint",
    "pairs": "Monte Carlo, pairs",
}
