"""Leddam on data of one's own: training on any CSV file, and `predict`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rflib.data import future_dates, read_series, write_series
from tests.leddam.own import NAMES, TINY, Own, execute, train

PAST, FUTURE, ROWS = 48, 24, 900


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    settings = {
        "data.seq_len": PAST,
        "data.horizons": f"({FUTURE},)",
        "model.names": "('leddam',)",
        "model.leddam.d_model": 32,
        "batch.leddam": 64,
        "optim.leddam.epochs": 2,
    }
    return train(tmp_path_factory.mktemp("own"), 3, ROWS, settings, draw=True)


def _predict(own: Own, source: Path, target: Path, *more: str) -> int:
    flags = ("--workdir", str(own.workdir), "--input", str(source), "--output", str(target))
    return execute("predict", *flags, *more)


def test_own_data_train_and_decide_no_claim_of_the_paper_but_the_size(own: Own) -> None:
    assert own.status == 0
    report = json.loads((own.workdir / "report.json").read_text())
    decided = {c["id"] for c in report["claims"] if c["verdict"] != "undecided"}
    assert decided == {"naive my-data-24", "C8"}
    assert {m for m in report["metrics"] if m.endswith("/mse")} >= {"my-data-24/leddam/mse"}


def test_predict_gives_the_forecast_of_the_run_in_physical_units(own: Own, tmp_path: Path) -> None:
    """The input ends where the first test window's past ends; the run kept its forecast."""
    with np.load(own.workdir / "arrays" / "predictions-my-data-24.npz") as kept:
        start, expected = int(kept["starts"][0]), kept["forecast_Leddam"][0]
        assert np.allclose(kept["truth"][0], own.values[start + PAST :][:FUTURE], rtol=1e-5)
    end = start + PAST
    source = write_series(tmp_path / "in.csv", own.values[:end], NAMES, dates=own.dates[:end])
    assert _predict(own, source, tmp_path / "out.csv") == 0
    found = read_series(tmp_path / "out.csv")
    assert found.names == NAMES
    scale = own.values.std(0)
    assert np.abs((found.values - expected) / scale).max() < 1e-5
    assert (found.dates == future_dates(own.dates[:end], FUTURE)).all()
    assert found.dates[0] == own.dates[end]


def test_predict_follows_the_order_of_the_input_and_needs_no_dates(
    own: Own, tmp_path: Path
) -> None:
    source = write_series(tmp_path / "in.csv", own.values, NAMES, dates=own.dates)
    turn = [1, 2, 0]  # no exchange of two: this order is not its own inverse
    names = tuple(NAMES[column] for column in turn)
    turned = write_series(tmp_path / "turned.csv", own.values[:, turn], names)
    assert _predict(own, source, tmp_path / "out.csv") == 0
    assert _predict(own, turned, tmp_path / "back.csv", "--seed", "2021") == 0
    forward, backward = (read_series(tmp_path / name) for name in ("out.csv", "back.csv"))
    assert backward.names == names and backward.dates is None
    assert np.array_equal(backward.values, forward.values[:, turn])


def test_predict_does_not_write_over_its_input(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_series(tmp_path / "in.csv", own.values, NAMES)
    before = source.read_bytes()
    (tmp_path / "link.csv").symlink_to(source)
    for target in (source, tmp_path / "link.csv"):
        assert _predict(own, source, target) == 2
        assert "is the input, which would be lost" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_predict_leaves_the_run_as_it_is(own: Own, tmp_path: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        stats = {str(path): path.stat() for path in own.workdir.rglob("*")}
        return {path: (each.st_size, each.st_mtime_ns) for path, each in stats.items()}

    before = state()
    assert _predict(own, own.csv, tmp_path / "out.csv") == 0
    assert state() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:30], "29 rows are too few; the model looks back on the last 48"),
        (lambda lines: [lines[0].replace("oil", "oul"), *lines[1:]], "it lacks 'oil'"),
        (lambda lines: [line + ",1" for line in lines], "it also has '1'"),
        (lambda lines: [*lines, "2020-02-07 12:00:00,1,,2"], "line 902, column 'oil': missing"),
        (lambda lines: [*lines, "2020-02-07 12:00:00,1,x,2"], "line 902, column 'oil': 'x'"),
        (lambda lines: [*lines, "2020-02-07 12:00:00,1,1e300,2"], "line 902, column 'oil': 1e+300"),
        (lambda lines: [lines[0], *lines[:0:-1]], "(newest first): sort the rows by date"),
    ],
)
def test_predict_names_what_is_wrong_with_its_input(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("\n".join(change(own.csv.read_text().splitlines())) + "\n")
    assert _predict(own, source, tmp_path / "out.csv") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v[:100], "rows are too few"),
        (lambda v: np.where(np.arange(3) == 1, 7.0, v), "column 'oil': the column is constant, 7"),
        (
            lambda v: np.where(np.arange(len(v))[:, None] == 800, 1e300, v),
            "line 802, column 'load'",
        ),
    ],
)
def test_training_names_what_is_wrong_with_own_data(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    csv = write_series(tmp_path / "bad.csv", change(own.values), NAMES)
    flags = [f"--config.data.path={csv}", f"--config.data.horizons=({FUTURE},)"]
    assert execute(*TINY, *flags, "--workdir", str(tmp_path / "run")) == 2
    assert words in capsys.readouterr().err
