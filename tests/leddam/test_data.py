"""The data protocol of Leddam (arXiv 2402.12694 and its public code): splits, scaling, windows."""

import gzip
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.data import by_share, read_series, sha256, window_count, windows, write_series
from rflib.methods.leddam import data as benchmarks
from rflib.methods.leddam.data import (
    LAYOUTS,
    REMOTES,
    filenames,
    least_rows,
    load,
    split,
    train_batches,
    valid_starts,
)
from rflib.methods.leddam.generator import FORMS, write_layout

PARTS = ("train", "valid", "test")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFLIB_OFFLINE", "1")


@pytest.fixture
def ett(data_file: Callable[[str], Path]) -> Path:
    return data_file("leddam/ETTh1.csv.gz").parent


def noise(rows: int, channels: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, channels)).round(4)


# --- counts: pure arithmetic on the published numbers of rows -----------------------------------


@pytest.mark.parametrize(
    ("name", "pred_len", "expected"),
    [
        *[(name, 96, (8449, 2785, 2785)) for name in ("ETTh1", "ETTh2")],
        ("ETTh1", 192, (8353, 2689, 2689)),
        ("ETTh1", 336, (8209, 2545, 2545)),
        ("ETTh1", 720, (7825, 2161, 2161)),
        *[(name, 96, (34369, 11425, 11425)) for name in ("ETTm1", "ETTm2")],
        ("ETTm1", 720, (33745, 10801, 10801)),
        ("Weather", 96, (36696, 5175, 10444)),
        ("Electricity", 96, (18221, 2537, 5165)),
        ("Traffic", 96, (12089, 1661, 3413)),
        ("Solar", 96, (36601, 5161, 10417)),
    ],
)
def test_window_counts_are_those_of_the_official_logs(name, pred_len, expected):
    parts = split(name, LAYOUTS[name].rows, 96)
    assert tuple(window_count(part.rows, 96, pred_len) for part in parts) == expected


def test_parts_are_the_rows_of_the_protocol():
    assert [tuple(part) for part in split("ETTh1", 17420, 96)] == [
        (0, 8640), (8640 - 96, 11520), (11520 - 96, 14400),
    ]  # fmt: skip
    assert [tuple(part) for part in split("ETTm2", 69680, 96)] == [
        (0, 34560), (34560 - 96, 46080), (46080 - 96, 57600),
    ]  # fmt: skip
    rows = 1007  # Solar: floor(.7 L), floor(.1 L), floor(.2 L) leave rows between valid and test
    assert [tuple(part) for part in split("Solar", rows, 9)] == [(0, 704), (695, 804), (797, 1007)]
    assert [tuple(part) for part in split("Weather", rows, 9)] == [
        (0, 704),
        (695, 806),
        (797, 1007),
    ]
    with pytest.raises(UserError, match="ETTh1 has 14399 rows; its 20 months take 14400"):
        split("ETTh1", 14399, 96)


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_targets_of_the_parts_are_disjoint(name):
    seq_len, pred_len = 36, 24
    parts = split(name, LAYOUTS[name].rows, seq_len)
    targets = [
        set(range(part.start + seq_len, part.start + window_count(part.rows, seq_len, pred_len)
                  - 1 + seq_len + pred_len))
        for part in parts
    ]  # fmt: skip
    train, valid, test = targets
    # Validation windows never hold a test target, neither as target nor in their look-back.
    assert not train & valid and not valid & test and not train & test
    assert not set(range(parts.valid.start, parts.valid.stop)) & test


# --- the real files ---------------------------------------------------------------------------


def test_etth1_is_read_fast_with_dates_and_the_published_numbers(ett):
    begin = time.perf_counter()
    series = read_series(ett / "ETTh1.csv.gz")
    assert time.perf_counter() - begin < 0.3
    assert series.values.shape == (17420, 7)
    assert series.names == ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    assert series.dates is not None
    assert str(series.dates[0]) == "2016-07-01T00:00:00"
    assert str(series.dates[-1]) == "2018-06-26T19:00:00"
    assert series.values[0, 6] == 30.5310001373291 and series.values[-1, 0] == 10.11400032043457


def test_shipped_files_have_the_registered_sha256(ett):
    for name, remote in REMOTES.items():
        assert sha256(ett / f"{name}.csv.gz") == remote.sha256, name


def test_scaler_of_etth1_is_that_of_its_training_rows(ett):
    means = [7.9377422, 2.0210387, 5.0797706, 0.7461859, 2.7817624, 0.7884531, 17.1282617]
    stds = [5.8127494, 2.0901046, 5.5187936, 1.9263793, 1.0235227, 0.6302366, 9.1764910]
    data = load("ETTh1", path=ett)
    np.testing.assert_allclose(data.standardiser.mean, means, atol=6e-8)
    np.testing.assert_allclose(data.standardiser.scale, stds, atol=6e-8)
    train = data.values[:8640]
    np.testing.assert_allclose(data.series[:8640].mean(axis=0), 0, atol=2e-6)
    np.testing.assert_allclose(data.standardiser.invert(data.series), data.values, atol=1e-5)
    assert data.series.dtype == np.float32
    assert abs(train.std(axis=0, ddof=1) - data.standardiser.scale).min() > 3e-5  # ddof is 0


@pytest.mark.parametrize("name", ["ETTh1", "ETTh2"])
def test_first_and_last_test_windows_are_the_rows_sliced_by_hand(ett, name):
    data = load(name, path=ett)
    first = data.starts("test")
    x, y = windows(jax.numpy.asarray(data.series), first[[0, -1]], 96, 96)
    text = gzip.decompress((ett / f"{name}.csv.gz").read_bytes()).decode().splitlines()[1:]
    raw = np.array([line.split(",")[1:] for line in text], float)
    scaled = (raw - raw[:8640].mean(axis=0)) / raw[:8640].std(axis=0)
    for window, start in enumerate((11520 - 96, 14400 - 192)):
        np.testing.assert_allclose(x[window], scaled[start : start + 96], atol=1e-6)
        np.testing.assert_allclose(y[window], scaled[start + 96 : start + 192], atol=1e-6)


def test_short_and_oddly_dated_benchmarks_load(ett):
    rates = load("exchange_rate", path=ett)
    assert rates.values.shape == (7588, 8) and rates.columns[-1] == "OT"
    assert str(rates.dates[1]) == "1990-01-02T00:00:00"
    illness = load("national_illness", path=ett, seq_len=36, pred_len=24)
    assert illness.values.shape == (966, 7)
    with pytest.raises(UserError, match=r"train part of the 966 rows.*needs 7184 rows"):
        load("national_illness", path=ett, pred_len=720)


# --- layouts, written by the generator ----------------------------------------------------------


@pytest.mark.parametrize("name", list(LAYOUTS))
@pytest.mark.parametrize("form", ["flat", "flat.gz", "folder", "folder.gz"])
def test_every_layout_is_found_flat_and_in_its_folder_plain_and_compressed(
    tmp_path, monkeypatch, name, form
):
    monkeypatch.setattr(benchmarks, "LAYOUTS", {**LAYOUTS, name: LAYOUTS[name]._replace(month=0)})
    values = noise(90, FORMS[name].channels)
    root = tmp_path / "leddam"
    path = write_layout(root, name, values, folders="folder" in form, compressed="gz" in form)
    assert str(path.relative_to(root)) in filenames(name)
    monkeypatch.setenv("RFLIB_DATA", str(tmp_path))
    lines: list[str] = []
    by_order, by_root, by_file = (
        load(name, path=place, seq_len=8, pred_len=4, notice=lines.append, required=True)
        for place in ("", root, path)
    )
    for data in (by_order, by_root, by_file):
        np.testing.assert_array_equal(data.values, values)
        assert (data.name, data.origin, data.generated) == (name, str(path), False)
    assert "as published" in lines[0]  # 90 rows are not the public file


@pytest.mark.parametrize("name", ["ETTh2", "ETTm1"])
def test_ett_files_use_twenty_months_and_ignore_the_rest(tmp_path, name):
    rows = 20 * LAYOUTS[name].month + 50
    values = noise(rows, 7)
    write_layout(tmp_path, name, values)
    data = load(name, path=tmp_path, notice=lambda _: None)
    expected = (8449, 2785, 2785) if name == "ETTh2" else (34369, 11425, 11425)
    assert tuple(len(data.starts(part)) for part in PARTS) == expected
    assert data.starts("test")[-1] + 192 == rows - 50


def test_solar_has_no_header_so_its_first_row_is_data(tmp_path):
    path = write_layout(tmp_path, "Solar", noise(400, 137))
    assert path.name == "solar_AL.txt"
    assert path.read_text().split("\n")[0].count(",") == 136
    data = load("Solar", path=tmp_path, seq_len=8, pred_len=4, notice=lambda _: None)
    assert len(data.values) == 400 and data.dates is None


def test_the_target_is_moved_to_the_end_and_nothing_else_moves(tmp_path):
    values = noise(200, 3)
    dates = np.datetime64("2020-01-01", "s") + np.arange(200) * np.timedelta64(3600, "s")
    path = write_series(tmp_path / "weather.csv", values, ["a", "OT", "c"], dates=dates)
    data = load("Weather", path=path, seq_len=8, pred_len=4, notice=lambda _: None)
    assert data.columns == ("a", "c", "OT")
    np.testing.assert_array_equal(data.values, values[:, [0, 2, 1]])
    other = load("Weather", path=path, seq_len=8, pred_len=4, target="a", notice=lambda _: None)
    assert other.columns == ("OT", "c", "a")
    with pytest.raises(UserError, match="no column 'o'"):
        load("Weather", path=path, seq_len=8, pred_len=4, target="o", notice=lambda _: None)


# --- own data -----------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path) -> Path:
    dates = np.datetime64("2020-01-01", "s") + np.arange(300) * np.timedelta64(1800, "s")
    return write_series(tmp_path / "my.csv", noise(300, 3), ["a", "b", "c"], dates=dates)


def test_own_csv_is_split_70_10_20_whatever_the_name_says(own):
    data = load("ETTh1", path=own, seq_len=8, pred_len=4)
    assert (data.name, data.generated, data.columns) == ("my", False, ("a", "b", "c"))
    assert data.parts == by_share(300, 8)
    assert data.season == 48  # half-hourly: a day
    train = data.series[: data.parts.train.stop]
    np.testing.assert_allclose(train.std(axis=0), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["Weather.csv", "ETTh1.tsv", "synthetic.csv"])
def test_own_csv_that_is_called_like_a_benchmark_is_not_taken_for_it(own, name):
    """The files of the benchmarks are weather.csv and ETTh1.csv."""
    data = load("synthetic", path=own.rename(own.with_name(name)), seq_len=8, pred_len=4)
    assert data.name == f"own-{name[:-4]}" and data.values.shape == (300, 3)


def test_own_csv_without_dates_and_with_weekly_ones_has_a_season(tmp_path):
    path = write_series(tmp_path / "plain.csv", noise(100, 2), ["a", "b"])
    assert load("", path=path, seq_len=8, pred_len=4).season == 24
    weeks = np.datetime64("2020-01-01", "s") + np.arange(100) * np.timedelta64(7 * 86400, "s")
    path = write_series(tmp_path / "weekly.csv", noise(100, 2), ["a", "b"], dates=weeks)
    assert load("", path=path, seq_len=8, pred_len=4).season == 52


def test_a_series_too_short_says_how_many_rows_are_needed(own):
    need = least_rows(96, 96)
    with pytest.raises(UserError, match=f"my.csv: 300 rows are too few, {need} are needed"):
        load("", path=own)


@pytest.mark.parametrize(("seq_len", "pred_len"), [(96, 96), (8, 4), (1, 1), (336, 24)])
def test_least_rows_is_enough_and_one_less_is_not(seq_len, pred_len):
    def fits(rows: int) -> bool:
        try:
            return all(
                window_count(part.rows, seq_len, pred_len) for part in by_share(rows, seq_len)
            )
        except UserError:
            return False

    need = least_rows(seq_len, pred_len)
    assert fits(need) and not fits(need - 1)


def test_malformed_own_data_are_refused_with_line_and_column(own):
    lines = own.read_text().splitlines()
    date, *_ = lines[20].split(",")
    own.write_text("\n".join([*lines[:20], f"{date},1.0,,2.0", *lines[21:]]))
    with pytest.raises(UserError, match=r"my\.csv line 21, column 'b': missing value"):
        load("", path=own, seq_len=8, pred_len=4)
    constant = noise(300, 3)
    constant[:210, 1] = 7  # only the training rows: they are what it is standardised by
    write_series(own, constant, ["a", "b", "c"])
    with pytest.raises(UserError, match=r"line 2, column 'b'.*constant, 7 up to line 211"):
        load("", path=own, seq_len=8, pred_len=4)


# --- nothing found ------------------------------------------------------------------------------


def test_missing_data_give_generated_ones_with_one_notice(monkeypatch, tmp_path):
    monkeypatch.setenv("RFLIB_DATA", str(tmp_path))
    lines: list[str] = []
    data = load("ETTh1", rows=1000, channels=4, seed=3, notice=lines.append)
    assert data.generated and data.values.shape == (1000, 4)
    assert len(lines) == 1
    for part in ("ETTh1.csv", str(tmp_path), "zhouhaoyi/ETDataset", "Going on with generated data"):
        assert part in lines[0]
    with pytest.raises(UserError, match=r"weather\.csv was not found.*Ways to get it"):
        load("Weather", required=True)
    with pytest.raises(UserError, match="does not exist"):
        load("ETTh1", path=tmp_path / "nowhere")
    with pytest.raises(UserError, match="does not exist"):
        load("synthetic", path=tmp_path / "my.csv")  # a mistyped name gives no other data


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match=r"'ETTh3' is not one of 'ETTh1'.*did you mean 'ETTh"):
        load("ETTh3")


# --- batches of the protocol ---------------------------------------------------------------------


def test_training_drops_the_last_batch_and_shows_every_other_window_once():
    data = load("synthetic", rows=700, seq_len=24, pred_len=12)
    windows_of_training = len(data.starts("train"))
    batch = train_batches(data, 64, seed=0)
    epoch = np.concatenate([batch(step) for step in range(windows_of_training // 64)])
    assert windows_of_training % 64 and len(epoch) == windows_of_training // 64 * 64
    assert len(set(epoch.tolist())) == len(epoch)
    assert set(epoch.tolist()) <= set(data.starts("train").tolist())


def test_validation_keeps_all_windows_or_drops_a_shuffled_rest_as_the_official_loader():
    data = load("synthetic", rows=1000, seq_len=24, pred_len=12)
    every = data.starts("valid")
    np.testing.assert_array_equal(valid_starts(data, 32), every)
    first, second = (valid_starts(data, 32, drop_last=True, epoch=epoch) for epoch in (0, 1))
    assert len(every) % 32 and len(first) == len(second) == len(every) // 32 * 32
    assert set(first.tolist()) != set(second.tolist())
    assert set(first.tolist()) | set(second.tolist()) <= set(every.tolist())
    with pytest.raises(UserError, match="batch=999"):
        valid_starts(data, 999, drop_last=True)


def test_the_tiny_protocol_has_505_test_windows():
    data = load("synthetic", rows=3000, channels=5)
    assert len(data.starts("test")) == 505
    assert data.columns == ("0", "1", "2", "3", "OT") and data.season == 24


def test_a_value_too_far_for_float32_is_named(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 2))
    for row, line in ((250, 252), (20, 22)):  # a test row, a training row
        values[row, 1] = 1e300
        path = write_series(tmp_path / "mine.csv", values, ["a", "b"])
        said = rf"line {line}, column 'b': 1e\+300 is too large, or too far from the training"
        with np.errstate(all="ignore"), pytest.raises(UserError, match=said):
            load("", path=path, seq_len=24, pred_len=12)


def test_own_rows_must_be_in_the_order_of_their_dates(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 2))
    dates = np.datetime64("2020-01-01", "s") + np.arange(300)[::-1] * np.timedelta64(3600, "s")
    path = write_series(tmp_path / "mine.csv", values, ["a", "b"], dates=dates)
    with pytest.raises(UserError, match="newest first"):
        load("", path=path, seq_len=24, pred_len=12)
