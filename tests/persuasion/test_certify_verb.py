"""`certify` as an economist meets it: two files in, an answer out, no learning stack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rflib
from rflib.methods.persuasion.data import write_game, write_policies
from rflib.methods.persuasion.game import full_revelation, make_game, outcome
from rflib.methods.persuasion.generators import aligned, random_profile, uniform

ROOT = Path(rflib.__file__).resolve().parents[1]
SCRIPT = '''"""Certifies."""

import sys

from experiments.persuading.verbs import CERTIFY
from rflib.run.cli import execute


def main(config, run):
    raise AssertionError("no run was asked for")


status = execute(main, {"certify": CERTIFY}, sys.argv[1:])
print(*sorted({"jax", "flax", "optax", "orbax", "matplotlib"} & set(sys.modules)), file=sys.stderr)
sys.exit(status)
'''
OPTIMUM = [np.array([[4 / 7, 3 / 7], [0.0, 1.0]]), np.full((2, 2), 0.5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certify")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "script.py").write_text(SCRIPT)
    write_game(folder / "game.npz", aligned())
    write_policies(folder / "policies.npz", OPTIMUM)
    write_policies(folder / "policies.json", OPTIMUM)
    return folder


def call(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, str(folder / "experiments" / "script.py"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_small_game_is_answered_in_3_seconds_without_the_learning_stack(folder: Path) -> None:
    before = os.times()  # processor time: the machine may have other things to do
    status, out, err = call(folder, "certify", "game.npz", "policies.npz")
    after = os.times()
    assert status == 0, err
    spent = after.children_user - before.children_user
    assert spent + after.children_system - before.children_system < 3
    assert err == "\n"  # none of the modules
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "this profile 0.6 0.6 0.7" in lines
    assert "full revelation 0.3 0.3 1" in lines
    assert "by any policy 0 (0) 0 (0) exact-global" in lines
    assert "smallest margin (distance from a cliff): 0" in lines
    assert "this profile dominates it strictly for every sender" in lines[-3]
    assert lines[-1].startswith("Nash equilibrium (exact-global)") and "ties 'sum'" in lines[-1]


def test_json_holds_deviations_that_can_be_replayed(folder: Path) -> None:
    arguments = ("game.npz", "policies.json", "--tie=index", "--output=out.json", "--null=7")
    status, out, err = call(folder, "certify", *arguments)
    assert status == 0, err
    assert "Not a Nash equilibrium (exact-global)" in out and "of 7 random profiles" in out
    found = json.loads((folder / "out.json").read_text())
    assert found["utilities"] == [0.0, 0.0] and found["kind"] == "exact-global"
    best = found["best"][0]
    assert abs(best["gain"] - 0.6) < 1e-9
    game = aligned()
    replayed = outcome(game, [np.array(best["policy"]), OPTIMUM[1]], "index").utilities[0]
    assert abs(replayed - best["attained"]) < 1e-12 and replayed > 0.5999
    assert set(found["local"]) == {"0.01", "0.05", "0.2"} and found["null"]["count"] == 7


def test_a_game_beyond_the_caps_is_sampled_and_never_called_an_equilibrium(folder: Path) -> None:
    rng = np.random.default_rng(0)
    game = make_game(
        rng.dirichlet(np.ones(3)), rng.uniform(size=(3, 3)), rng.uniform(size=(2, 3, 3)), (3, 8)
    )
    write_game(folder / "large.json", game)
    write_policies(folder / "large.npz", random_profile(game, rng))
    arguments = ("--global_cap=5", "--exact_cap=1", "--null=0", "--deltas=0.2", "--deviations=40")
    status, out, err = call(folder, "certify", "large.json", "large.npz", *arguments)
    assert status == 0, err
    assert "sampled" in out and "unverified" in out
    assert "Not decided whether it is a Nash equilibrium: sender 0, 1 unverified." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("game.npz",), "certify takes GAME POLICIES, not game.npz"),
        (("game.npz", "no.npz"), "no.npz: cannot be read"),
        (("game.npz", "game.npz"), "game.npz: no array 'pi_0'; there is"),
        (("game.npz", "policies.npz", "--tie=max"), "tie='max' must be"),
        (("game.npz", "policies.npz", "--deltas=0.1;0.2"), "--deltas=0.1;0.2 must be numbers"),
        (("game.npz", "policies.npz", "--deltas=2"), "deltas=2.0 must lie in (0, 1]"),
        (("game.npz", "policies.npz", "--deltas=.1,.1"), "each of them once"),
        (("game.npz", "policies.npz", "--ratios=inf"), "ratios=inf must lie in"),
        (("game.npz", "policies.npz", "--tie=sender:\u00b2"), "tie='sender:\u00b2' must be"),
        (("game.npz", "policies.npz", "--null=x"), "--null=x must be a whole number"),
        (("game.npz", "policies.npz", "--norm=l1"), "norm='l1' is not one of"),
        (("game.npz", "policies.npz", "--workdir=runs/x"), "leave out --workdir"),
        (("game.npz", "policies.npz", "--config=x.py"), "leave out --config"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    folder: Path, arguments: tuple[str, ...], message: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from experiments.persuading.verbs import CERTIFY
    from rflib.run.cli import execute

    monkeypatch.chdir(folder)
    status = execute(_main, {"certify": CERTIFY}, ["certify", *arguments])
    err = capsys.readouterr().err
    assert status == 2 and message in err and err.count("\n") == 1


def _main(config: object, run: object) -> None:
    raise AssertionError("no run was asked for")


def test_help_shows_the_words_of_the_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from experiments.persuading.verbs import CERTIFY
    from rflib.run.cli import execute

    assert execute(_main, {"certify": CERTIFY}, ["--help"]) == 0
    out = capsys.readouterr().out
    assert "certify GAME POLICIES [FLAGS]" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "GAME .npz or .json file: mu [W], u [W, A], v [n, W, A], S [n]" in lines
    assert any(line.startswith("--tie ") and line.endswith("(default: sum)") for line in lines)


def test_the_table_compares_with_full_revelation_of_the_games_own_file(folder: Path) -> None:
    game = uniform(3)
    write_game(folder / "three.npz", game)
    write_policies(folder / "three_policies.npz", [np.eye(2), np.eye(2)])
    status, out, err = call(folder, "certify", "three.npz", "three_policies.npz")
    assert status == 0, err
    values = [f"{value:.6g}" for value in full_revelation(game).utilities]
    rows = [line.split() for line in out.splitlines()]
    assert ["this", "profile", *values] in [row[:4] for row in rows]
    assert ["full", "revelation", *values] in [row[:4] for row in rows]
    assert out.splitlines()[-1].startswith("Nash equilibrium (exact-global)")
