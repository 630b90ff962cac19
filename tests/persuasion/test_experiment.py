"""The persuasion experiment: its config, a small run of all parts, and what decides its claims."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs.persuasion as file
from experiments import persuasion
from experiments.persuading import (
    approximation,
    bootstrap,
    equilibria,
    games,
    hardness,
    networks,
    optimisers,
    searching,
    surfaces,
    truth,
    verdicts,
)
from rflib.core.errors import UserError
from rflib.methods.persuasion import data, losses, model
from rflib.methods.persuasion.game import full_revelation, outcome, spans
from rflib.methods.persuasion.local_response import local_best_response
from rflib.run import Run, load_config
from rflib.run import record as records

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = [
    "game", "data", "model", "optim", "search", "verify", "snap", "pareto", "refine", "hardness",
    "mesh", "checkpoint", "log", "evals", "expect",
]  # fmt: skip
SMALL = {
    "steps": 20,
    "batch": 32,
    "optim.scan": 20,
    "log.every": 20,
    "data.profiles": 200,
    "data.test": 100,
    "model.hidden": 6,
    "model.inner": 6,
    "model.features": 3,
    "search.starts": 5,
    "search.steps": 10,
    "search.iterated_starts": 2,
    "verify.deviations": 40,
    "verify.shortlist": 2,
    "verify.top": 1,
    "verify.null": 3,
    "snap.starts": 2,
    "hardness.repeats": 1,
    "evals.segments": 5,
    "expect.bootstrap": 100,
}


def small(**changes: Any) -> Any:
    """The tiny variant, shrunk."""
    return load_config(
        "persuasion", "tiny", SMALL | {k.replace("__", "."): v for k, v in changes.items()}
    )


def opened(path: Path, config: Any) -> Run:
    return Run.open(path, config, experiment="persuasion", variant="tiny", quiet=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The directory and config of a small run of every part."""
    path, config = tmp_path_factory.mktemp("persuasion") / "run", small(refine__rounds=1)
    with opened(path, config) as run:
        persuasion.main(config, run)
    return path, config


def report(path: Path) -> dict[str, Any]:
    return json.loads((path / "report.json").read_text())


# The config.


def test_all_variants_have_the_same_keys_and_sections_in_the_order_of_the_design() -> None:
    keys = [list(records.flat(file.get_config(variant))) for variant in file.VARIANTS]
    assert all(each == keys[0] for each in keys)
    text = (ROOT / "configs" / "persuasion.py").read_text()
    assert re.findall(r"    c\.(\w+) = ConfigDict\(\)", text) == SECTIONS


def test_every_leaf_of_the_config_has_a_comment() -> None:
    text = (ROOT / "configs" / "persuasion.py").read_text()
    body = text[: text.index("def _tiny(")].splitlines()
    leaves = [line for line in body if re.match(r"    c\.[\w.]+ = (?!ConfigDict)", line)]
    assert len(leaves) > 60
    assert [line for line in leaves if "  # " not in line] == []


# A run of all parts.


def test_a_run_ends_with_every_claim_table_and_figure(finished: tuple[Path, Any]) -> None:
    path, _ = finished
    found = report(path)
    names = {claim["id"] for claim in found["claims"]}
    assert {"C3 control as found", "C3 control after snap"} <= names
    assert {"C2", "C3", "C4", "C4 unmatched", "C5", "C5 as found", "surface"} <= names
    assert {"C5 common interest dnl", "C5 control iterated", "extra-gradient"} <= names
    verdicts_ = {claim["id"]: claim["verdict"] for claim in found["claims"]}
    assert verdicts_["extra-gradient"] == "holds"
    # Three games and no widened networks decide neither.
    assert verdicts_["C4"] == verdicts_["C5"] == "undecided"
    for name in ("approximation", "control", "hardness", "interests", "known-games",
                 "pareto", "surfaces"):  # fmt: skip
        assert (path / "figures" / f"{name}.png").stat().st_size > 5000, name
    for name in ("games", "approximation", "equilibria", "control", "interests", "optimisers",
                 "refinement", "hardness"):  # fmt: skip
        assert (path / "tables" / f"{name}.csv").read_text().count("\n") > 1, name


def test_certified_profiles_can_be_judged_again(finished: tuple[Path, Any]) -> None:
    path, config = finished
    with (path / "equilibria" / "certified.csv").open() as file:
        rows = list(csv.DictReader(file))
    methods = searching.methods(config)
    assert len(rows) == 3 * 2 * len(methods)  # games, stages
    found = sorted((path / "equilibria").glob("*aligned-*.json"))
    assert found
    game = data.read_game(path / "games" / "2x2x2x2-aligned.npz")
    for file in found:
        kept = json.loads(file.read_text())
        values = outcome(game, data.read_policies(file, game), kept["tie"]).utilities
        np.testing.assert_allclose(values, kept["utilities"], atol=1e-12)
        assert kept["gains"][1] <= 0.005
    report = (path / "report.md").read_text()
    assert max(map(len, report.splitlines())) < 2000


def test_every_config_key_was_read(finished: tuple[Path, Any]) -> None:
    assert report(finished[0]).get("unread_keys", []) == []


def test_a_finished_run_reports_the_same_again_and_trains_nothing(
    finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = finished
    before = report(path)["claims"]

    def never(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a finished search ran again")

    monkeypatch.setattr(searching, "_learned_program", never)
    with opened(path, config) as run:
        persuasion.main(config, run)
    assert report(path)["claims"] == before


def test_kept_games_can_be_read_and_are_those_that_were_played(
    finished: tuple[Path, Any],
) -> None:
    path, config = finished
    played = games.size_classes(config)[0].games
    for game in played:
        kept = data.read_game(path / "games" / f"2x2x2x2-{games.title(game)}.npz")
        np.testing.assert_array_equal(kept.v, game.v)


# Networks.


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, networks.Trained]:
    """DNL for two games and two seeds at once, and for the first game alone."""
    config = small(more_seeds=(1,), game__with_truth=False)
    size = games.size_classes(config)[0]
    found = {}
    with opened(tmp_path_factory.mktemp("networks") / "run", config) as run:
        for name, chosen in {"both": size.games, "first": size.games[:1]}.items():
            part = games.SizeClass(name, chosen)
            samples = networks.training_profiles(config, part)
            found[name] = networks.train(config, run, part, "dnl", samples)
    return found


def test_a_network_does_not_depend_on_the_games_beside_it(
    trained: dict[str, networks.Trained],
) -> None:
    both, first = trained["both"].alone(0), trained["first"]
    assert not np.array_equal(both.params["W0"][0, 0], both.params["W0"][0, 1])  # two seeds
    for name, value in first.params.items():
        np.testing.assert_allclose(both.params[name], value, atol=1e-5)
    np.testing.assert_allclose(both.scale.mean, first.scale.mean, rtol=1e-6)


def test_the_sum_of_errors_has_each_networks_own_gradient() -> None:
    config = small(more_seeds=(1,), game__with_truth=False)
    size = games.size_classes(config)[0]
    chosen = networks.network(config, "dnl", size)
    rng = np.random.default_rng(0)
    arrays = {
        "inputs": rng.uniform(size=(2, 30, chosen.inputs)).astype(np.float32),
        "targets": rng.normal(size=(2, 30, 2)).astype(np.float32),
        "kept": np.stack([rng.permutation(30), rng.permutation(30)]),
    }
    rows = rng.integers(0, 30, (8, 2))
    task = networks._task(chosen, 2, (0, 1), lambda step: rows, arrays)
    values = task.init(jax.random.key(0))

    def total(params: Any) -> Any:
        return task.loss({"params": params, "extra": {}}, (arrays, rows), jax.random.key(0))[0]

    gradient = jax.jit(jax.grad(total))(values["params"])
    for g, s in ((0, 0), (1, 0), (1, 1)):
        own = jax.tree.map(lambda each, g=g, s=s: each[g, s], values["params"])
        places = arrays["kept"][g][rows[:, s]]
        inputs, targets = (jnp.asarray(arrays[name][g][places]) for name in ("inputs", "targets"))
        alone = jax.grad(losses.loss)(own, chosen, inputs, targets)
        for name, value in alone.items():
            np.testing.assert_allclose(gradient[name][g, s], value, atol=1e-5)


def test_matched_networks_have_as_many_parameters_as_dnl() -> None:
    config = small()
    size = games.size_classes(config)[0]
    target = model.parameter_count(networks.network(config, "dnl", size))
    for kind in ("relu-matched", "delu-matched"):
        count = model.parameter_count(networks.network(config, kind, size))
        assert abs(count - target) < 0.12 * target


def test_predictions_are_in_the_units_of_the_utilities(
    trained: dict[str, networks.Trained],
) -> None:
    found = trained["both"]
    inputs = np.random.default_rng(0).dirichlet(np.ones(2), (2, 7, 4)).reshape(2, 7, 8)
    values = networks.predict(found, inputs)
    assert values.shape == (2, 2, 7, 2)
    own = {name: jnp.asarray(value[1, 0]) for name, value in found.params.items()}
    plain = model.apply(own, found.network, jnp.asarray(inputs[1, 3], jnp.float32))
    expected = found.scale.mean[1] + found.scale.std[1] * np.asarray(plain)
    np.testing.assert_allclose(values[1, 0, 3], expected, rtol=1e-4, atol=1e-5)


# Search, shortlist, certificates.


def _ends(config: Any, game: Any, count: int) -> searching.Ends:
    rng = np.random.default_rng(0)
    kept = [rng.dirichlet(np.ones(s), (count, 1, game.n_states)) for s in game.signals]
    return searching.ends(config, game, kept, np.zeros(count, int))


def test_ends_keep_the_iterate_of_the_largest_true_sum() -> None:
    config = small()
    game = games.size_classes(config)[0].games[0]
    rng = np.random.default_rng(1)
    kept = [rng.dirichlet(np.ones(s), (4, 6, game.n_states)) for s in game.signals]
    found = searching.ends(config, game, kept, np.zeros(4, int))
    true = outcome(game, kept, config.tie).utilities
    total = (true / spans(game)).sum(-1)
    rows = np.arange(4)
    np.testing.assert_array_equal(found.best_utilities, true[rows, total.argmax(1)])
    np.testing.assert_array_equal(found.utilities, true[:, -1])


@pytest.mark.parametrize("states", [2, 3])
def test_the_shortlist_puts_profiles_that_pass_first(states: int) -> None:
    config = small(verify__top=4, verify__shortlist=12)
    game = data.GENERATORS["uniform"](0, states=states, actions=3)
    found = _ends(config, game, 12)
    chosen = equilibria.shortlist(config, game, found)
    limit = config.verify.ratio * config.verify.delta
    exact = []
    for k in range(len(chosen.seeds)):
        profile = [part[k] for part in chosen.profiles]
        own = outcome(game, profile, config.tie).utilities
        gains = [
            local_best_response(game, profile, j, config.verify.delta).value - own[j]
            for j in range(2)
        ]
        exact.append(max(np.array(gains) / spans(game)) <= limit)
    if states == 2:  # every end is tested exactly
        assert chosen.passed > 0 and any(exact)
        assert exact == sorted(exact, reverse=True)
    assert chosen.looked_at >= len(chosen.seeds)


def test_the_best_equilibrium_is_certified_and_has_the_largest_sum() -> None:
    config = small()

    def end(utility: float, gain: float, kind: str = "exact-local") -> dict[str, Any]:
        return {"after": {"utilities": [utility, 0.0], "gains": [gain] * 3, "kind": kind}}

    game = {
        "spans": [1.0, 1.0],
        "methods": {
            "dnl": {
                "found": [end(0.9, 0.1), end(0.8, 0.0, "sampled"), end(0.5, 0.0), end(0.7, 0.004)]
            }
        },
    }
    chosen = equilibria.best(config, game, "dnl", "after")
    assert chosen is not None and chosen["utilities"][0] == 0.7


class Said:
    """A run that remembers its claims."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}

    def claim(self, name: str, text: str, **rest: Any) -> None:
        self.claims[name] = rest


def judged(own: float, rival: float) -> dict[str, Any]:
    """A game in which the first method's and the control's candidate gain this much."""

    def one(gain: float) -> dict[str, Any]:
        each = {"utilities": [0.5, 0.5], "gains": [gain] * 3, "kind": "exact-global"}
        return {"found": [{"seed": 0, "before": each, "after": each}]}

    return {
        "spans": [1.0, 1.0],
        "null": {"rates": np.zeros((3, 4))},
        "methods": {"dnl": one(own), "random": one(rival)},
    }


@pytest.mark.parametrize(
    ("own", "rival", "verdict", "control"),
    [
        (0.0, 1.0, "holds", "holds"),
        (0.0, 0.0, "holds", "undecided"),  # no single random profile passes, but the best does
        (1.0, 1.0, "refuted", "undecided"),
        (1.0, 0.0, "refuted", "refuted"),
    ],
)
def test_equilibria_are_found_more_often_than_by_chance_with_the_same_selection(
    own: float, rival: float, verdict: str, control: str
) -> None:
    said = Said()
    verdicts._c3(small(), said, {str(k): judged(own, rival) for k in range(12)})
    assert said.claims["C3"]["verdict"] == verdict
    assert said.claims["C3 control after snap"]["verdict"] == control
    verdicts._c3(small(search__baselines=()), said, {"0": judged(own, rival)})
    assert said.claims["C3 control after snap"]["verdict"] == "undecided"


def test_only_profiles_that_pass_an_exact_test_are_verified() -> None:
    game = judged(0.006, 0.0)
    assert equilibria.verified(small(), game, "dnl", "after") == []
    assert len(equilibria.verified(small(), game, "random", "after")) == 1


@pytest.mark.parametrize(
    ("kind", "gap", "reached", "verdict"),
    [
        ("exact-global", 0.0, 0.5, "holds"),
        ("exact-global", 0.0, 0.2, "refuted"),
        ("exact-global", 0.1, 0.5, "refuted"),  # an exact number, and no equilibrium
        ("exact-local", None, 0.5, "undecided"),
    ],
)
def test_common_interest_asks_for_an_equilibrium_and_not_only_for_utility(
    kind: str, gap: float | None, reached: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, config = Said(), small(search__kinds=("dnl",), search__optimisers=())
    monkeypatch.setattr(Said, "table", lambda *_, **__: None, raising=False)
    each = {
        "sum_before": 1.0, "sum_after": 1.2, "optimum": 1.2, "snapped": 2, "unsettled": 0.0,
        "reached_before": 0.0, "reached_after": reached, "best": {"kind": kind, "gap": gap},
    }  # fmt: skip
    names = [f"interest {t:g} {m}" for t in (0, 1) for m in searching.methods(config)]
    truth.state(config, said, dict.fromkeys(names, each))
    assert said.claims["C5 common interest dnl"]["verdict"] == verdict


def test_optimisers_are_compared_where_all_of_them_have_an_equilibrium() -> None:
    first, second = judged(0.0, 0.0), judged(1.0, 0.0)
    for game, gain in ((first, 0.0), (second, 0.0)):
        for method in ("dnl optimistic", "dnl simultaneous"):
            game["methods"][method] = judged(gain, 0.0)["methods"]["dnl"]
        for each in game["methods"].values():
            each |= {"best_sum": 1.0, "distinct": 1, "closed_form": None}
    second["methods"]["dnl optimistic"]["found"][0]["after"]["utilities"] = [9.0, 9.0]
    config = small(search__kinds=("dnl",))
    rows = optimisers.learned_table(config, {"one": first, "two": second})
    assert [row["best certified sum"] for row in rows] == [1.0, 1.0, 1.0]
    assert [row["games with a certified equilibrium"] for row in rows] == [0.5, 1.0, 1.0]


def test_full_revelation_dominates_nothing_and_an_absent_equilibrium_neither() -> None:
    config = small()
    game = games.size_classes(config)[0].games[0]
    known = full_revelation(game, config.tie).utilities
    metrics = {"full_revelation": known.tolist(), "spans": spans(game).tolist()}
    same = verdicts.against_revelation(config, metrics, {"utilities": known.tolist()})
    assert bool(same.weak) and not bool(same.strict)
    assert not bool(verdicts.against_revelation(config, metrics, None).weak)


def test_refined_samples_have_exact_utilities_and_lie_around_what_was_found() -> None:
    config = small(refine__profiles=50)
    game = data.GENERATORS["aligned"]()
    samples = networks.draw(config, game, 200, 0)
    found = _ends(config, game, 3)
    more = truth.refined(config, game, samples, found, 0)
    assert len(more.labels) == 250
    fresh = [part[200:] for part in more.profile]
    np.testing.assert_allclose(outcome(game, fresh, config.tie).utilities, more.utilities[200:])
    for part, ends in zip(fresh, found.best, strict=True):
        near = np.abs(part[:, None] - ends[None]).max((2, 3)).min(1)
        assert near.max() <= config.refine.delta + 1e-12


# Verdicts.


def test_the_bootstrap_interval_of_a_constant_is_the_constant_and_few_games_decide_nothing() -> (
    None
):
    assert bootstrap.over_games([2.0] * 12, 50)[:3] == (2.0, 2.0, 2.0)
    assert bootstrap.above([bootstrap.over_games([1.0] * 3, 50)])[0] == "undecided"
    assert bootstrap.above([bootstrap.over_games([1.0] * 12, 50)])[0] == "holds"
    assert bootstrap.above([bootstrap.over_games([-1.0] * 12, 50)])[0] == "refuted"
    assert bootstrap.above([bootstrap.over_games([-1.0, 1.0] * 6, 500)])[0] == "undecided"
    with pytest.raises(UserError, match="finite"):
        bootstrap.over_games([float("nan")], 10)


def test_advantages_average_seeds_within_a_game_and_compare_logs() -> None:
    size = games.SizeClass("c", ("a", "b"))  # type: ignore[arg-type]
    found = {
        "c dnl": {"errors": {"all": [[0.1, 0.1], [0.4, 0.1]]}},
        "c relu": {"errors": {"all": [[0.2, 0.2], [0.1, 0.4]]}},
    }
    np.testing.assert_allclose(
        approximation.advantages(found, [size], "relu"), [np.log(2), 0.0], atol=1e-12
    )


def test_the_slope_of_exponential_times_is_its_rate() -> None:
    curve = np.array([[t, 1e-3 * 3.0**t] for t in range(2, 9)])
    assert abs(hardness.slope(curve) - np.log(3)) < 1e-12
    assert hardness.slope(curve[:4]) is None


def test_small_programs_do_not_refute_hardness() -> None:
    def timed(signals: int) -> dict[str, Any]:
        return {
            f"2 states, 2 actions, {t} signals": {"seconds": {hardness.SOLVERS[0]: 0.01}}
            for t in range(2, signals + 1)
        }

    rows = [{"states": 2, "actions": 2, "log actions": np.log(2), hardness.SOLVERS[0]: 0.0}]
    assert hardness._verdict(rows, 0.5, timed(7))[0] == "undecided"
    assert hardness._verdict(rows, 0.5, timed(10))[0] == "refuted"
    assert hardness._verdict([rows[0] | {hardness.SOLVERS[0]: 0.6}], 0.5, timed(7))[0] == "holds"


def test_a_slice_keeps_rows_on_their_simplices_and_moves_two_probabilities() -> None:
    config = small()
    game = data.GENERATORS["uniform"](0, states=3, actions=3, signals=3)
    found = surfaces.grid(config, game)
    for part in found:
        np.testing.assert_allclose(part.sum(-1), 1)
    np.testing.assert_allclose(found[0][:, 7, 0, 0], np.linspace(0, 1, surfaces.POINTS))
    np.testing.assert_allclose(found[1][7, :, 0, 0], np.linspace(0, 1, surfaces.POINTS))
    assert np.ptp(found[0][..., 1, :], (0, 1)).max() == 0


# Own games and mistakes.


def test_an_own_game_is_the_only_one(tmp_path: Path) -> None:
    game = data.GENERATORS["ride_hailing"](3)
    data.write_game(tmp_path / "mine.json", game)
    config = small(game__path=str(tmp_path / "mine.json"), game__with_truth=False)
    (size,) = games.size_classes(config)
    np.testing.assert_array_equal(size.games[0].u, game.u)


@pytest.mark.parametrize(
    ("name", "called"), [("a/b ../c", "a-b-..-c"), ("..", "own"), ("interests", "own")]
)
def test_a_games_own_name_is_safe_in_paths_and_for_the_other_classes(
    tmp_path: Path, name: str, called: str
) -> None:
    data.write_game(tmp_path / "mine.json", data.GENERATORS["aligned"]()._replace(name=name))
    (size,) = games.size_classes(small(game__path=str(tmp_path / "mine.json")))
    assert size.name == called


def test_classes_are_named_by_the_games_that_are_played() -> None:
    changes = {"game__generator": "ride_hailing", "game__with_truth": False}
    found = games.size_classes(small(game__sizes=((2, 2, 2, 2), (3, 2, 2, 4)), **changes))
    assert [size.name for size in found] == ["2x3x3x2", "3x4x4x4"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"game__sizes": ((2, 2, 2),)}, "senders, states, actions, signals"),
        ({"game__generator": "uniforn"}, "did you mean 'uniform'"),
        ({"game__sizes": ((3, 2, 2, 2),)}, "with_truth"),
        ({"game__thetas": (2.0,)}, "thetas"),
        ({"search__kinds": ("dnl", "relu-matched")}, "config.search.kinds"),
        ({"parts": ("approx", "equilibrium")}, "did you mean 'equilibria'"),
        ({"parts": ()}, "config.parts=()"),
        ({"tie": "sender:2", "game__sizes": ((3, 2, 2, 2),), "game__with_truth": False}, "tie="),
        ({"game__sizes": ()}, "config.game.sizes=()"),
        ({"game__sizes": (2, 2, 2, 2)}, "config.game.sizes: 2 must be"),
        ({"game__sizes": ((2, 2, 2, 2), (2, 2, 2, 2))}, "another class of uniform games"),
        ({"game__generator": "aligned"}, "aligned makes the same game from every seed"),
        ({"game__thetas": ()}, "config.game.thetas=()"),
        ({"game__thetas": (0.5, 0.5)}, "config.game.thetas"),
        ({"data__mixture": (0.5, 0.5)}, "config.data.mixture=(0.5, 0.5) must hold 6 shares"),
        ({"data__mixture": (0.5, 0.5, 0.5, 0, 0, 0)}, "must sum to 1"),
        ({"data__profiles": 5, "batch": 2}, "leaves no profile to validate on"),
        ({"batch": 1000}, "config.batch=1000 must be at most 180"),
        ({"optim__lr": 0.0}, "config.optim.lr=0.0"),
        ({"evals__patience": 2}, "config.evals.patience=2 needs"),
        ({"evals__patience": -1}, "config.evals.patience=-1"),
        ({"model__piece": "tan"}, "did you mean 'tanh'"),
        ({"model__kinds": ("dnl", "dnl"), "search__kinds": ("dnl",)}, "config.model.kinds"),
        ({"search__kinds": ()}, "config.search.kinds=()"),
        ({"search__kinds": ("dnl", "dnl")}, "each name once"),
        ({"search__kinds": (), "search__baselines": (), "parts": ("ground_truth",)}, "both empty"),
        ({"search__steps": 60}, "config.search.steps=60 must be a multiple of"),
        ({"search__eta": 0.0}, "config.search.eta=0.0"),
        ({"search__param": "sofmax"}, "did you mean 'softmax'"),
        ({"search__optimisers": ("mirror_prox",)}, "needs parametrisation='projection'"),
        ({"snap__delta": 2.0}, "config.snap.delta=2.0"),
        ({"verify__deltas": (0.01, 2.0)}, "config.verify.deltas=2.0"),
        ({"verify__delta": 0.03}, "config.verify.delta=0.03"),
        ({"verify__ratio": 0.3}, "config.verify.ratio=0.3"),
        ({"verify__null": 0}, "config.verify.null=0"),
        ({"pareto__tau": -1.0}, "config.pareto.tau=-1.0"),
        ({"refine__rounds": 1, "refine__profiles": 0}, "config.refine.profiles=0"),
        ({"hardness__games": ((2,),)}, "must be (states, actions)"),
        ({"more_seeds": (0,)}, "more_seeds"),
    ],
)
def test_a_mistake_in_the_config_is_named_before_anything_is_trained(
    tmp_path: Path, change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **named: Any) -> None:
        raise AssertionError("the run has begun")

    monkeypatch.setattr(networks, "train", never)
    monkeypatch.setattr(hardness, "measure", never)
    config = small(**change)
    with (
        pytest.raises(UserError, match=re.escape(message)),
        opened(tmp_path / "run", config) as run,
    ):
        persuasion.main(config, run)
