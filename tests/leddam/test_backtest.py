"""`backtest` and `export` on a trained run with quantiles, and runs with another lookback."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.forecasting import backtest, backtest_report
from rflib.core.errors import NotFinite
from rflib.methods.leddam import intervals
from rflib.methods.leddam import numpy_forecast as inference
from tests.leddam.own import NAMES, Own, execute, train

PAST, FUTURE, ROWS = 336, 6, 1500
LEVELS = (0.05, 0.5, 0.95)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    settings = {
        "data.seq_len": PAST,
        "data.horizons": f"({FUTURE},)",
        "model.names": "('dlinear','leddam-no_res')",
        "model.quantiles": LEVELS,
        "model.leddam.d_model": 32,
        "batch.leddam": 64,
        "optim.leddam.epochs": 1,
        "optim.dlinear.epochs": 2,
        "mesh.data": 1,
    }
    return train(tmp_path_factory.mktemp("backtest"), 5, ROWS, settings)


def _verb(name: str, own: Own, *more: str) -> int:
    return execute(name, "--workdir", str(own.workdir), *more)


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def judged(own: Own, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged") / "out"
    assert own.status == 0
    assert _verb("backtest", own, "--input", str(own.csv), "--output", str(folder)) == 0
    return folder


def test_a_run_looks_back_as_far_as_it_is_told_and_reports_its_quantiles(own: Own) -> None:
    report = json.loads((own.workdir / "report.json").read_text())
    assert {c["verdict"] for c in report["claims"] if c["id"].startswith("C4")} == {"undecided"}
    rows = _rows(own.workdir / "tables" / "runs.csv")
    assert all(0 < float(row["crps"]) < float(row["mae"]) for row in rows)


def test_the_errors_of_the_training_file_are_those_of_the_test_part(own: Own, judged: Path) -> None:
    """Rows of training and validation are known and left out: what is left is the run's test."""
    tested = {row["forecast"]: row for row in _rows(own.workdir / "tables" / "runs.csv")}
    rows = _rows(judged / "errors.csv")
    for name, row in tested.items():
        (found,) = [
            r for r in rows if (r["forecast"], r["step"], r["series"]) == (name, "all", "all")
        ]
        assert int(found["targets"]) == (ROWS // 5 - FUTURE + 1) * FUTURE * 3
        assert abs(float(found["mse"]) - float(row["mse"])) < 1e-5 * float(row["mse"])
        assert abs(float(found["mae"]) - float(row["mae"])) < 1e-5 * float(row["mae"])


def test_rows_of_steps_and_series_add_up_and_have_the_units_of_the_file(
    own: Own, judged: Path
) -> None:
    rows = [r for r in _rows(judged / "errors.csv") if r["forecast"] == "naive: repeat last"]
    table = {(r["step"], r["series"]): r for r in rows}
    assert len(table) == (FUTURE + 1) * 4
    first = ROWS - ROWS // 5  # the first row of the test part
    last = own.values[first - 1 : ROWS - FUTURE]
    for step in (1, FUTURE):
        error = own.values[first + step - 1 :][: len(last)] - last
        for place, name in enumerate(NAMES):
            cell = table[str(step), name]
            assert float(cell["mae_physical"]) == pytest.approx(np.abs(error[:, place]).mean())
            assert float(cell["rmse_physical"]) == pytest.approx(
                (error[:, place] ** 2).mean() ** 0.5
            )
            assert float(cell["bias_physical"]) == pytest.approx(-error[:, place].mean(), rel=1e-4)
    mean = np.mean([float(table[str(s), n]["mse"]) for s in range(1, FUTURE + 1) for n in NAMES])
    assert float(table["all", "all"]["mse"]) == pytest.approx(mean)
    assert table["1", "all"]["rmse_physical"] == ""


def test_intervals_are_calibrated_before_the_rows_that_count(judged: Path) -> None:
    rows = _rows(judged / "intervals.csv")
    assert {(r["forecast"], r["interval"]) for r in rows} >= {
        ("Leddam no_res", "split conformal"),
        ("Leddam no_res", "conformal quantiles"),
        ("Leddam no_res", "quantiles"),
        ("naive: repeat season", "split conformal"),
    }
    count = ROWS // 5 - FUTURE + 1
    late = count - count // 2 - (FUTURE - 1)
    for row in rows:
        if row["step"] == row["series"] == "all":
            assert int(row["targets"]) == late * FUTURE * 3
            assert 0 <= float(row["coverage"]) <= 1
    some = next(r for r in rows if (r["step"], r["series"]) == ("2", "oil"))
    assert float(some["width_physical"]) == pytest.approx(2 * float(some["radius_physical"]))
    assert (judged / "backtest.png").stat().st_size > 5000


def test_on_exchangeable_errors_measured_coverage_is_the_target() -> None:
    """The whole of `judge`: a forecast whose errors are independent draws, 3 steps, 2 series."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(4000, 3, 2))
    origins = backtest_report.Origins(np.arange(4000), slice(0, 2000), slice(2003, 4000), 0)
    ahead = {"point": np.zeros_like(truth), "low": truth * 0 - 0.5, "high": truth * 0 + 0.5}
    found = backtest.judge("zero", ahead, truth, origins, alpha=0.2)
    for kind, (_, band) in found.bands.items():
        if kind != "quantiles":
            share = intervals.coverage(band, truth[2003:], (0,))
            assert np.abs(share - 0.8).max() < 5 * (0.8 * 0.2 / 1000) ** 0.5
    assert found.bands["split conformal"][0] == pytest.approx(np.full((3, 2), 1.2816), abs=0.1)
    moved = found.bands["conformal quantiles"][1]  # two constants: again the quantile of |y|
    np.testing.assert_allclose(moved.high[0], found.bands["split conformal"][0], rtol=1e-9)


def test_a_series_named_all_is_told_from_all_series() -> None:
    error = np.arange(12.0).reshape(2, 3, 2)
    band = intervals.Interval(error - 1, error + 1)
    judged = backtest_report.Judged("zero", error, {"some": (np.ones((3, 2)), band)})
    scale = np.array([2.0, 3.0])
    rows = list(backtest_report.error_rows(judged, ("all", "b"), scale))
    assert [row[2] for row in rows[:3]] == ["all", "b", "all series"]
    assert rows[0][7] == pytest.approx(2 * np.abs(error[:, 0, 0]).mean())
    assert [row[2] for row in rows if row[7] is None] == ["all series"] * 4
    rows = list(backtest_report.interval_rows(judged, error, ("all", "b"), scale))
    assert [row[7] for row in rows[:3]] == [4.0, 6.0, None]


def test_forecasts_that_are_not_finite_do_not_pass_for_missing_targets() -> None:
    truth, origins = (
        np.zeros((8, 3, 2)),
        backtest_report.Origins(np.arange(8), slice(0, 4), slice(4, 8), 0),
    )
    ahead = np.where(np.arange(8) == 5, np.nan, 0.0)[:, None, None] + truth
    with pytest.raises(NotFinite, match="zero: 6 forecasts are not finite"):
        backtest.judge("zero", {"point": ahead}, truth, origins, alpha=0.5)


def test_skip_and_stride_choose_the_origins(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--input", str(own.csv), "--output", str(tmp_path), "--model", "dlinear")
    assert _verb("backtest", own, *flags, "--skip", "1000", "--stride", "7", "--alpha", "0.2") == 0
    output = capsys.readouterr().out
    assert "rows 1000 to 1200 are among those that the model was trained and chosen on" in output
    rows = _rows(tmp_path / "errors.csv")
    assert {r["forecast"] for r in rows if not r["forecast"].startswith("naive")} == {"DLinear"}
    origins = len(range(1000, ROWS - FUTURE + 1, 7))
    assert {int(r["targets"]) for r in rows if (r["step"], r["series"]) == ("1", "oil")} == {
        origins
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--alpha", "1.5"), "--alpha=1.5 must lie in (0, 1)"),
        (("--alpha", "x"), "--alpha='x' is not a number"),
        (("--stride", "0"), "--stride=0.0 must be a whole number"),
        (("--stride", "40"), "origins are too few: alpha=0.1 takes 9 for calibration"),
        (("--skip", "1495"), "origins are too few"),
        (("--model", "lstm"), "--model='lstm' is not one of 'dlinear', 'leddam-no_res'"),
        (("--horizon", "7"), "--horizon='7' is not one of '6'"),
    ],
)
def test_backtest_names_what_is_wrong(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    target = tmp_path / "out"
    assert _verb("backtest", own, "--input", str(own.csv), "--output", str(target), *flags) == 2
    assert words in capsys.readouterr().err
    assert not target.exists()


def test_an_output_that_is_a_file_is_left_alone(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    target.write_text("mine")
    assert _verb("backtest", own, "--input", str(own.csv), "--output", str(target)) == 2
    assert "is a file; a directory is expected" in capsys.readouterr().err
    assert target.read_text() == "mine"


def test_the_exported_model_forecasts_what_predict_writes(own: Own, tmp_path: Path) -> None:
    archive, ahead = tmp_path / "model.npz", tmp_path / "ahead.csv"
    assert _verb("export", own, "--output", str(archive), "--model", "leddam-no_res") == 0
    flags = ("--input", str(own.csv), "--output", str(ahead), "--model", "leddam-no_res")
    assert _verb("predict", own, *flags) == 0
    written = _rows(ahead)
    arrays = inference.load(archive)
    order = [NAMES.index(name) for name in arrays["columns"]]
    found = inference.numpy_quantiles(arrays, own.values[-PAST:, order])
    scale = own.values.std(0)
    for column, place in enumerate(order):
        for q, level in enumerate(LEVELS):
            truth = [float(row[f"{NAMES[place]} q{level:g}"]) for row in written]
            assert np.abs(found[:, column, q] - truth).max() < 1e-5 * scale[place]
    assert (tmp_path / "numpy_forecast.py").read_text() == Path(inference.__file__).read_text()


def test_export_wants_an_npz(own: Own, capsys: pytest.CaptureFixture[str]) -> None:
    assert _verb("export", own, "--output", "model.onnx") == 2
    assert "must end in .npz" in capsys.readouterr().err
