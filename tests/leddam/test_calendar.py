"""Calendar features through the experiment: training, tests, `predict` and `backtest`."""

import csv
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.forecasting import models
from experiments.forecasting.forecasters import forecasters
from rflib.core.errors import UserError
from rflib.data import read_series, write_series
from rflib.methods.leddam.data import load
from rflib.methods.leddam.time_features import FEATURES, time_features
from rflib.nn import variables
from rflib.run import load_config
from tests.leddam.own import NAMES, TINY, Own, execute, train

PAST, FUTURE, ROWS = 24, 6, 300
SMALL = {
    "data.seq_len": PAST,
    "data.horizons": (FUTURE,),
    "model.names": ("transformer+ld", "informer"),
    **{
        f"{section}.{name}.{key}": value
        for name in ("transformer", "informer")
        for section, key, value in (
            ("model", "d_model", 8),
            ("model", "d_ff", 8),
            ("model", "n_heads", 2),
            ("model", "n_layers", 1),
            ("model", "label_len", 12),
            ("model", "calendar", True),
            ("optim", "epochs", 1),
        )
    },
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    more = {"model.quantiles": (0.1, 0.5, 0.9), "mesh.data": 1}
    return train(tmp_path_factory.mktemp("calendar"), 7, ROWS, SMALL | more)


def test_without_the_key_no_forecaster_takes_marks() -> None:
    names = ("transformer", "informer", "transformer+ld", "leddam")
    for quantiles in ((), (0.1, 0.5)):
        options = {"model.names": names, "model.quantiles": quantiles}
        found = forecasters(load_config("leddam", "tiny", options), 3, "mine", 4)
        plain, undated = jnp.zeros((9, 3)), load("synthetic", rows=1000, channels=3)
        for each in found.values():
            assert models.calendar(each.module, None, "mine.csv") is None
            assert models.with_calendar(each.module, plain, undated) is plain


def test_windows_carry_the_marks_of_their_past_and_future_rows(own: Own) -> None:
    data = load("", path=own.csv, seq_len=PAST, pred_len=FUTURE)
    config = load_config("leddam", "tiny", SMALL | {"model.names": ("transformer",)})
    module: Any = forecasters(config, 3, "mine", FUTURE)["transformer"].module
    assert module.n_marks == len(FEATURES)
    series = models.with_calendar(module, models.on_device(data), data)
    assert isinstance(series, models.Dated)
    starts = jnp.asarray([0, 17])
    marks = models.marked(series.marks, starts, PAST, FUTURE)
    for each, start in zip(np.asarray(marks), (0, 17), strict=True):
        np.testing.assert_array_equal(each, time_features(own.dates[start : start + PAST + FUTURE]))
    view = variables.init(module, jax.random.key(0), (1, PAST, 3))
    x = jnp.stack([data.series[start : start + PAST] for start in (0, 17)])
    expected = models.forecast(module, view, x, marks)
    errors = models.measure(module)(view, (series, starts))
    truth = np.stack([data.series[start + PAST :][:FUTURE] for start in (0, 17)])
    np.testing.assert_allclose(errors["mse"], np.mean((expected - truth) ** 2, (1, 2)), rtol=1e-5)
    other = models.forecast(module, view, x, -marks)
    assert float(jnp.abs(other - expected).max()) > 1e-3


def test_predict_and_backtest_take_the_calendar_from_the_dates(own: Own, tmp_path: Path) -> None:
    assert own.status == 0
    flags = ("--workdir", str(own.workdir), "--input")

    def predicted(source: Path, *more: str) -> np.ndarray:
        target = tmp_path / f"{source.stem}-out.csv"
        assert execute("predict", *flags, str(source), "--output", str(target), *more) == 0
        return read_series(target).values

    later = write_series(
        tmp_path / "later.csv", own.values, NAMES, dates=own.dates + np.timedelta64(7 * 3600, "s")
    )
    for model in ("transformer+ld", "informer"):
        here, there = (predicted(source, "--model", model) for source in (own.csv, later))
        assert here.shape == (FUTURE, 3 * 4)
        assert np.abs((here - there) / own.values.std(0).repeat(1)[np.arange(12) % 3]).max() > 1e-4
    out = tmp_path / "out"
    assert execute("backtest", *flags, str(own.csv), "--output", str(out), "--alpha", "0.3") == 0
    with open(own.workdir / "tables" / "runs.csv") as file:
        tested = {row["forecast"]: float(row["mse"]) for row in csv.DictReader(file)}
    with open(out / "errors.csv") as file:
        judged = {
            row["forecast"]: float(row["mse"])
            for row in csv.DictReader(file)
            if row["step"] == row["series"] == "all"
        }
    assert tested.keys() == {"Transformer + LD", "Informer"}
    for name, mse in tested.items():
        assert judged[name] == pytest.approx(mse, rel=1e-4)


def test_a_calendar_takes_dates(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_series(tmp_path / "in.csv", own.values, NAMES)
    flags = [f"--config.{key}={value}" for key, value in SMALL.items()]
    flags += [f"--config.data.path={source}", "--workdir", str(tmp_path / "run")]
    assert execute(*TINY, *flags) == 2
    words = f"{source} has no dates, which calendar=True takes"
    assert words in capsys.readouterr().err
    for verb in ("predict", "backtest"):
        target = str(tmp_path / "out")
        more = ("--input", str(source), "--output", target, "--alpha", "0.3")[
            : None if verb == "backtest" else 4
        ]
        assert execute(verb, "--workdir", str(own.workdir), *more) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(UserError, match="no dates"):
        module: Any = forecasters(load_config("leddam", "tiny", SMALL), 3, "x", 4)[
            "informer"
        ].module
        models.calendar(module, None, "x.csv")
