"""Missing values: filled in a past, never counted in a future, whatever stands in the gap."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import leddam
from experiments.forecasting import figures, models
from rflib.core.errors import UserError
from rflib.data import (
    Series,
    check_series,
    fit_standardiser,
    read_series,
    shuffled,
    write_series,
)
from rflib.methods.leddam import numpy_forecast as inference
from rflib.methods.leddam.baselines import DLinear
from rflib.methods.leddam.data import load
from rflib.methods.leddam.gaps import Gapped, fill_gaps, gapped_windows, observed_share
from rflib.methods.leddam.generator import generate
from rflib.methods.leddam.naive import naive_errors
from rflib.methods.leddam.quantile_head import QuantileHead
from rflib.run.cli import execute
from tests import laws
from tests.leddam.forecasters import shaken

TINY = ["--config", str(Path(__file__).resolve().parents[2] / "configs" / "leddam.py:tiny")]
NAMES = ("load", "oil", "wind")
T, S = 48, 6


def holed(rows: int = 400, share: float = 0.15, seed: int = 0) -> np.ndarray:
    """Generated series [L, 3] with a share of NaN: single ones, and one long gap in each series."""
    values = generate(3, rows=rows, channels=3).values
    rng = np.random.default_rng(seed)
    values[rng.random(values.shape) < share] = np.nan
    for column in range(3):
        values[40 + 90 * column :][:30, column] = np.nan
    return values


# Reading and filling.


def test_a_gap_is_an_error_that_names_it_unless_gaps_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("date,a,b\n2020-01-01,1,2\n2020-01-02,,3\n2020-01-03,NA,nan\n2020-01-04,4,5\n")
    with pytest.raises(UserError, match="line 3, column 'a': missing value"):
        read_series(path)
    series = read_series(path, gaps=True)
    np.testing.assert_array_equal(series.values, [[1, 2], [np.nan, 3], [np.nan, np.nan], [4, 5]])
    assert series.dates is not None and len(series.dates) == 4
    for cell, words in (("x", "'x' is not a finite number"), ("inf", "'inf' is not a finite")):
        path.write_text(f"a,b\n1,\n{cell},3\n")
        with pytest.raises(UserError, match=f"line 3, column 'a': {words}"):
            read_series(path, gaps=True)


def test_a_column_needs_two_different_values() -> None:
    values = np.array([[np.nan, 1.0], [2.0, np.nan], [2.0, 3.0]])
    series = read_series_of(values)
    with pytest.raises(UserError, match="column '0': the column is constant, 2 up to line 3"):
        check_series(series)
    series = read_series_of(np.array([[np.nan, 1.0], [np.nan, 2.0]]))
    with pytest.raises(UserError, match="line 1, column '0': no value up to line 2"):
        check_series(series)


def read_series_of(values: np.ndarray) -> Series:
    names = tuple(map(str, range(values.shape[1])))
    return Series(values, names, None, "date", 1, "my.csv")


def test_statistics_leave_gaps_out() -> None:
    values = holed()
    found = fit_standardiser(values)
    for column in range(3):
        seen = values[~np.isnan(values[:, column]), column]
        assert found.mean[column] == pytest.approx(seen.mean())
        assert found.scale[column] == pytest.approx(seen.std())


def test_gaps_are_filled_from_before_and_never_from_after() -> None:
    nan = np.nan
    values = np.array([[nan, 1.0], [2.0, nan], [nan, nan], [5.0, 4.0]])
    filled = fill_gaps(values, np.array([-7.0, -8.0]))
    np.testing.assert_array_equal(filled, [[-7, 1], [2, 1], [2, 1], [5, 4]])
    series = holed()
    for row in (1, 57, 200):  # what stands in later rows changes nothing before
        early = fill_gaps(series[:row], np.zeros(3))
        np.testing.assert_array_equal(fill_gaps(series, np.zeros(3))[:row], early)


# Weights.


def _poisoned(values: np.ndarray, poison: float) -> Gapped:
    """The same observed values, `poison` in every gap of the series that the loss is given."""
    return Gapped(
        jnp.asarray(np.where(np.isnan(values), poison, values), jnp.float32),
        jnp.asarray(~np.isnan(values)),
    )


def test_windows_carry_the_mask_of_their_futures() -> None:
    values = holed()
    starts = np.array([0, 31, 100], np.int32)
    x, y, observed = gapped_windows(_poisoned(values, 0), starts, T, S)
    assert observed is not None
    for place, start in enumerate(starts):
        future = values[start + T :][:S]
        np.testing.assert_array_equal(observed[place], ~np.isnan(future))
        np.testing.assert_allclose(y[place], np.nan_to_num(future), rtol=1e-6)
    assert x.shape == (3, T, 3)
    assert gapped_windows(jnp.zeros((100, 3)), starts[:2], T, S)[2] is None


def _by_hand(
    values: np.ndarray, filled: np.ndarray, starts: np.ndarray, ahead: Any
) -> tuple[float, float]:
    """(Σ w e² / Σ w, Σ w |e| / Σ w) over all windows in float64, NaN-aware and nothing else."""
    errors = np.stack([ahead(filled[s : s + T]) - values[s + T :][:S] for s in starts])
    return np.nanmean(errors**2), np.nanmean(np.abs(errors))


def test_naive_errors_count_observed_targets_only() -> None:
    values = holed()
    starts = np.arange(len(values) - T - S + 1, dtype=np.int32)
    filled = fill_gaps(values, np.zeros(3))
    observed = ~np.isnan(values)
    found = naive_errors(
        jnp.asarray(filled, jnp.float32), starts, seq_len=T, pred_len=S, season=24, batch=64,
        observed=observed,
    )  # fmt: skip
    for name, ahead in {
        "repeat last": lambda x: np.repeat(x[-1:], S, 0),
        "repeat season": lambda x: x[-24:][:S],
    }.items():
        mse, mae = _by_hand(values, filled, starts, ahead)
        assert float(found[name]["mse"]) == pytest.approx(mse, rel=1e-5)
        assert float(found[name]["mae"]) == pytest.approx(mae, rel=1e-5)


@pytest.mark.parametrize("levels", [None, (0.1, 0.5, 0.8)])
def test_what_stands_in_a_gap_of_the_future_changes_neither_loss_nor_gradient(levels) -> None:
    """The gaps hold NaN for one loss and 1e6 for the other; pasts are kept free of gaps here."""
    values = holed(rows=T + S + 3)
    values[: T + 3] = np.nan_to_num(values[: T + 3])
    values[T + 4 :: 2, 1] = np.nan
    module = DLinear(n_series=3, seq_len=T, pred_len=S, kernel_size=5)
    module = module if levels is None else QuantileHead(module, levels)
    starts = np.arange(4, dtype=np.int32)
    density = observed_share(~np.isnan(values), starts, T, S)
    assert 0.3 < density < 0.9
    found = []
    for poison in (np.nan, 1e6):
        data = _poisoned(values, poison)
        problem = models.task(
            module, loss="mse" if levels is None else "pinball", series=data,
            batch=lambda step: starts, density=density,
        )  # fmt: skip

        @jax.jit
        def both(v, data=data, problem=problem):
            loss = lambda p: problem.loss({**v, "params": p}, (data, starts), jax.random.key(0))[0]  # noqa: E731
            return jax.value_and_grad(loss)(v["params"])

        found.append(jax.device_get(both(shaken(module))))
    leaves = jax.tree.leaves(found[0])
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    for one, other in zip(leaves, jax.tree.leaves(found[1]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_share_of_observed_targets_is_counted_window_by_window() -> None:
    values = holed()
    starts = np.array([3, 60, 61], np.int32)
    truth = np.mean([~np.isnan(values[s + T :][:S]) for s in starts])
    assert observed_share(~np.isnan(values), starts, T, S) == pytest.approx(truth)
    assert observed_share(None, starts, T, S) == 1
    with pytest.raises(UserError, match="not one value was observed in the futures of 3"):
        observed_share(np.zeros((400, 3), bool), starts, T, S)


def test_the_task_with_gaps_and_quantiles_obeys_the_laws() -> None:
    """Among them: the loss is a mean over rows, so that micro-batches add up exactly."""
    values = holed(rows=90)[:, :2]
    data = Gapped(jnp.asarray(fill_gaps(values, np.zeros(2)), jnp.float32) / 4,
                  jnp.asarray(~np.isnan(values)))  # fmt: skip
    module = QuantileHead(DLinear(n_series=2, seq_len=12, pred_len=3, kernel_size=5), (0.2, 0.5))
    batch = shuffled(60, 8, seed=3)
    laws.verify_task(models.task(module, loss="pinball", series=data, batch=batch, density=0.7))


# Through the experiment.


def _execute(*arguments: str) -> int:
    return execute(leddam.main, leddam.VERBS, list(arguments))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """(csv, workdir, flags) of a run on a file with gaps."""
    folder = tmp_path_factory.mktemp("gaps")
    source = write_series(folder / "gaps.csv", holed(rows=600), NAMES)
    settings = {
        "data.path": source,
        "data.seq_len": T,
        "data.horizons": f"({S},)",
        "model.names": "('dlinear',)",
        "optim.dlinear.epochs": 1,
        "mesh.data": 1,
    }
    flags = [*TINY, *(f"--config.{key}={value}" for key, value in settings.items())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", lambda run, cells: None)
        flag = "--config.data.gaps=mask"
        assert _execute(*flags, flag, "--workdir", str(folder / "run"), "--quiet") == 0
    return source, folder / "run", flags


def test_the_default_refuses_a_file_with_gaps(
    trained: tuple[Path, Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _execute(*trained[2], "--workdir", str(tmp_path / "run")) == 2
    assert "missing value ('nan')" in capsys.readouterr().err


def test_the_test_error_of_a_run_is_that_of_observed_targets(
    trained: tuple[Path, Path, list[str]],
) -> None:
    """Σ w e² / Σ w by hand, from the exported model and the file itself."""
    source, workdir, _ = trained
    archive = workdir.parent / "model.npz"
    assert _execute("export", "--workdir", str(workdir), "--output", str(archive)) == 0
    arrays = inference.load(archive)
    data = load("", path=source, seq_len=T, pred_len=S, gaps=True)
    assert data.observed is not None and data.columns == tuple(arrays["columns"])
    z = data.standardiser.apply(data.values)
    np.testing.assert_allclose(data.series, fill_gaps(z, np.zeros(3)), atol=1e-5)
    plain = {**arrays, "mean": np.zeros(3), "scale": np.ones(3)}
    starts = data.starts("test")
    past = np.stack([data.series[s : s + T] for s in starts])
    truth = np.stack([z[s + T :][:S] for s in starts])
    assert 0.05 < np.isnan(truth).mean() < 0.5
    error = inference.numpy_forecast(plain, past) - truth
    with open(workdir / "tables" / "runs.csv") as file:
        (row,) = csv.DictReader(file)
    assert float(row["mse"]) == pytest.approx(np.nanmean(error**2), rel=1e-4)
    assert float(row["mae"]) == pytest.approx(np.nanmean(np.abs(error)), rel=1e-4)
    report = json.loads((workdir / "report.json").read_text())
    assert report["metrics"]["gaps-6/dlinear/mse"] == pytest.approx(float(row["mse"]))


def test_predict_says_which_series_were_silent_in_the_whole_past(
    trained: tuple[Path, Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, workdir, _ = trained
    lines = [line.split(",") for line in source.read_text().splitlines()]
    for cells in lines[-T:]:
        cells[1] = ""
    (tmp_path / "in.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    flags = ("--workdir", str(workdir), "--input", str(tmp_path / "in.csv"))
    assert _execute("predict", *flags, "--output", str(tmp_path / "out.csv")) == 0
    name = lines[0][1]
    assert f"the last {T} values of {name!r} are all missing" in capsys.readouterr().out


def test_the_middle_window_is_one_that_was_observed() -> None:
    observed = np.ones((100, 2), bool)
    data: Any = SimpleNamespace(
        starts=lambda part: np.arange(50, 80), seq_len=10, pred_len=5, observed=None
    )
    assert figures.middle_window(data) == 15
    data.observed = observed
    assert figures.middle_window(data) == 15
    observed[60:90, 0] = False  # another series
    assert figures.middle_window(data) == 15
    observed[70:85, -1] = False  # the futures, or pasts, of windows 60 to 76
    assert figures.middle_window(data) == 9
    observed[:, -1] = False
    assert figures.middle_window(data) == 15


def test_verbs_take_a_file_with_gaps_where_the_run_did(
    trained: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    source, workdir, _ = trained
    lines = source.read_text().splitlines()
    lines[-1] = ",nan,"  # the last row itself is missing altogether
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n")
    flags = ("--workdir", str(workdir), "--input", str(tmp_path / "in.csv"))
    assert _execute("predict", *flags, "--output", str(tmp_path / "out.csv")) == 0
    assert np.isfinite(read_series(tmp_path / "out.csv").values).all()
    assert _execute("backtest", *flags, "--output", str(tmp_path), "--alpha", "0.2") == 0
    with open(tmp_path / "errors.csv") as file:
        rows = {(r["forecast"], r["step"], r["series"]): r for r in csv.DictReader(file)}
    observed = ~np.isnan(read_series(tmp_path / "in.csv", gaps=True).values)
    first = 600 - 600 // 5  # rows of training and validation are known by their values
    for place, name in enumerate(NAMES):
        seen = observed[first + 1 : 600 - S + 2, place].sum()
        assert int(rows["DLinear", "2", name]["targets"]) == seen
