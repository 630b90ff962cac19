"""CSV series: forms that are read, round trips, and errors that name line and column."""

import gzip
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rflib.core.errors import UserError
from rflib.data import check_dates, check_series, future_dates, read_series, select, write_series
from rflib.data.dates import looks_like_date


@pytest.fixture
def path(tmp_path):
    return tmp_path / "my.csv"


def stamps(*texts: str) -> np.ndarray:
    return np.array(texts, dtype="datetime64[s]")


@pytest.mark.parametrize(
    ("text", "names", "dates"),
    [
        ("date,a,b\n2020-01-01 00:00:00,1,2\n2020-01-01 01:00:00,3,4\n", ("a", "b"), True),
        ("date,a,b\n2020/1/1 0:00,1,2\n2020/1/1 1:00,3,4", ("a", "b"), True),
        ("a,Date,b\n1,2020-01-01T00:00:00Z,2\n3,2020-01-01T01:00:00Z,4\n", ("a", "b"), True),
        ("when,a,b\n01.01.2020 00:00,1,2\n01.01.2020 01:00,3,4\n", ("a", "b"), True),
        ("2020-01-01 00:00,1,2\n2020-01-01 01:00,3,4\n", ("1", "2"), True),
        ("a;b\n1;2\n3;4\n", ("a", "b"), False),
        ("a\tb\n1\t2\n3\t4\n\n\n", ("a", "b"), False),
        ("\ufeffa,b\r\n1,2\r\n3,4\r\n", ("a", "b"), False),
        ('"a","b"\n"1","2"\n"3","4"\n', ("a", "b"), False),
        (",a,b\n0,1,2\n1,3,4\n", ("a", "b"), False),
        ("timestamp,a,b\n1577836800,1,2\n1577840400,3,4\n", ("a", "b"), False),
        ("1,2\n3,4\n", ("0", "1"), False),
        ("1e0, 2.0\n3 ,+4\n", ("0", "1"), False),
    ],
)
def test_forms_of_the_same_table_read_alike(path, text, names, dates):
    path.write_bytes(text.encode())
    series = read_series(path)
    np.testing.assert_array_equal(series.values, [[1, 2], [3, 4]])
    assert series.values.dtype == np.float64
    assert series.names == names
    if dates:
        expected = stamps("2020-01-01T00:00:00", "2020-01-01T01:00:00")
        np.testing.assert_array_equal(series.dates, expected)
    else:
        assert series.dates is None


@pytest.mark.parametrize(
    "text",
    ["0,1,2\n5,7,9\n", "1,2,3,4\n5,7,9,8\n", "400001,400017\n61.5,60.25\n", "0,1\n.5,-1.5\n"],
)
def test_names_that_are_numbers_are_not_taken_for_values(path, text):
    path.write_text(text)
    with pytest.raises(UserError, match=r"line 1: .* may be the columns' names or their first"):
        read_series(path)
    assert len(read_series(path, header=False).values) == 2
    path.write_text(f"date,{text}".replace("\n", "\n2020-01-01,", 1))
    assert read_series(path).names == tuple(text.split("\n")[0].split(","))


@pytest.mark.parametrize("text", ["5,7\n1,2\n", "3,3\n.5,.5\n", "7\n.5\n", "0.5,1\n.5,.7\n"])
def test_first_lines_of_values_are_values(path, text):
    path.write_text(text)
    assert len(read_series(path).values) == 2


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ((3, 2, 1), r"line 3, column 'date': 2020-01-02.* comes after 2020-01-03.*newest first"),
        ((1, 3, 2, 4, 5), r"line 4, .* \(1 of 4 steps go back\): sort the rows"),
        ((1, 1, 2), None),
        ((*range(1, 26), 24, *range(25, 32), *range(1, 30)), r"line 27, .* \(2 of 61 steps"),
    ],
)
def test_rows_out_of_the_order_of_their_dates_are_named(path, days, said):
    path.write_text("date,a\n" + "".join(f"2020-01-{day:02},{day}\n" for day in days))
    if said is None:
        check_dates(read_series(path))
        return
    with pytest.raises(UserError, match=said):
        check_dates(read_series(path))


def test_a_clock_that_is_put_back_and_no_dates_are_let_through(path):
    hours = [*range(100), 99, *range(100, 200)]
    stamps = np.datetime64("2020-01-01", "s") + np.array(hours) * np.timedelta64(3600, "s")
    values = np.arange(len(hours), dtype=float)[:, None]
    check_dates(read_series(write_series(path, values, ["a"], dates=stamps)))
    check_dates(read_series(write_series(path, values, ["a"])))


def test_header_can_be_forced_for_numbers_as_names(path):
    path.write_text("1,2\n3,4\n5,6\n")
    assert len(read_series(path).values) == 3
    assert read_series(path, header=True).names == ("1", "2")
    path.write_text("x,y\n3,4\n")
    with pytest.raises(UserError, match="line 1, column '0': 'x' is not a finite number"):
        read_series(path, header=False)


def test_a_single_column_and_latin_1_names_are_read(path):
    path.write_bytes("SWDR (W/m²)\n1.5\n2.5\n".encode("latin-1"))
    series = read_series(path)
    assert series.names == ("SWDR (W/m²)",)
    np.testing.assert_array_equal(series.values, [[1.5], [2.5]])


GOOD = "date,load,OT\n2020-01-01,1,2\n2020-01-02,3,4\n2020-01-03,5,6\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("3,4", ",4", r"my\.csv line 3, column 'load': missing value \(''\); 1 of .* 3 cells"),
        ("3,4", "3,NaN", r"line 3, column 'OT': missing value \('NaN'\)"),
        ("3,4", "3,n/a", r"line 3, column 'OT': missing value"),
        ("3,4", "3,inf", r"line 3, column 'OT': 'inf' is not a finite number"),
        ("3,4", "three,4", r"line 3, column 'load': 'three' is not a finite number; 1 of"),
        ("3,4", "1_000,4", r"line 3, column 'load': '1_000' is not"),
        ("3,4", "3,4,5", r"line 3: 4 cells where the first line has 3"),
        ("3,4", "3", r"line 3: 2 cells where"),
        ("2020-01-02,3,4", "", r"line 3: an empty line"),
        ("2020-01-02", "2020-13-02", r"line 3, column 'date': '2020-13-02' is not a date"),
        ("2020-01-02", "", r"line 3, column 'date': '' is not a date; write YYYY-MM-DD"),
        ("2020-01-02", "soon", r"line 3, column 'date': 'soon' is not a date"),
        ("load,OT", "OT,OT", r"two columns are named 'OT'"),
    ],
)
def test_a_malformed_cell_or_line_is_named(path, old, new, message):
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(UserError, match=message):
        read_series(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("a,b\n", "a header and no rows"),
        ("date\n2020-01-01\n", "no column of numbers"),
        ("a,city\n1,Rome\n2,Oslo\n", "column 'city': 'Rome'.* 2 of the column's 2.*name it 'date'"),
        ("day,a\n1/31/2020,1\n2/1/2020,2\n", r"line 2, column 'day'.*write them as YYYY-MM-DD"),
        ("a;b\n1,5;2\n1,6;3\n", "'1,5' is not .*decimal points"),
        ("\0\1\2", "not a text file"),
        ("a,b\n1,2\n" + '"' + 200_000 * "x" + '",3\n', "cannot be read as CSV"),
        (200_000 * "x" + ",b\n1,2\n", "cannot be read as CSV"),
    ],
)
def test_a_file_that_is_no_series_is_named(path, text, message):
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_series(path)


def test_a_missing_file_is_named(path):
    with pytest.raises(UserError, match=r"my\.csv: cannot be read"):
        read_series(path)


def test_counts_of_bad_cells_are_given(path):
    path.write_text("a,b\n1,\n2,\n,5\n")
    with pytest.raises(UserError, match=r"line 2, column 'b'.*2 of the column's 3 cells and 3 in"):
        read_series(path)


def test_constant_columns_and_short_series_are_refused_with_their_lines(path):
    path.write_text("a,b\n" + "".join(f"{row},{max(row, 5)}\n" for row in range(10)))
    series = read_series(path)
    check_series(series, least=10)
    with pytest.raises(UserError, match=r"line 2, column 'b'.*constant, 5 up to line 7"):
        check_series(series, rows=(0, 6))
    with pytest.raises(UserError, match="10 rows are too few, 11 are needed"):
        check_series(series, least=11)


def test_select_orders_columns_and_suggests_near_names(path):
    path.write_text("HUFL,OT\n1,2\n3,4\n")
    series = select(read_series(path), ["OT", "HUFL"])
    np.testing.assert_array_equal(series.values, [[2, 1], [4, 3]])
    with pytest.raises(UserError, match="no column 'HUFF'; there is HUFL"):
        select(series, ["HUFF"])


@settings(deadline=None, max_examples=40)
@given(
    arrays(
        np.float64, st.tuples(st.integers(1, 6), st.integers(1, 4)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.booleans(),
    st.sampled_from([".csv", ".csv.gz"]),
)  # fmt: skip
def test_writing_then_reading_is_exact(tmp_path_factory, values, dated, suffix):
    path = tmp_path_factory.mktemp("series") / f"a{suffix}"
    dates = stamps("2020-02-28T23:00:00") + np.arange(len(values)) * np.timedelta64(1800, "s")
    names = [f"x, {column}" for column in range(values.shape[1])]
    write_series(path, values, names, dates=dates if dated else None)
    series = read_series(path)
    np.testing.assert_array_equal(series.values, values)
    assert series.names == tuple(names)
    if dated:
        np.testing.assert_array_equal(series.dates, dates)
    else:
        assert series.dates is None


def test_written_bytes_depend_on_content_only_and_float32_stays_short(tmp_path):
    values = np.array([[0.1, 2.5]], np.float32)
    for name in ("a.csv.gz", "b.csv.gz"):
        write_series(tmp_path / name, values, ["x", "y"])
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == b"x,y\n0.1,2.5\n"
    with pytest.raises(UserError, match="cannot be written"):
        write_series(tmp_path / "no" / "a.csv", values, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv.gz", "b.csv.gz"]


def test_only_a_regular_file_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, ""):
        with pytest.raises(UserError, match=r"cannot be written .*directory"):
            write_series(folder, np.ones((1, 1)), ["x"])
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}*")) and not list(tmp_path.iterdir())
    pipe = tmp_path / "pipe"  # as /dev/stdout may be
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_series(pipe, np.ones((1, 1)), ["x"])
    reader.join(10)
    assert pipe.is_fifo() and read == [b"x\n1.0\n"]


def test_future_dates_go_on_at_the_usual_distance_and_by_whole_months():
    hours = stamps("2020-01-01T00:00:00") + np.arange(5) * np.timedelta64(3600, "s")
    hours = np.delete(hours, 2)  # one gap does not change the distance
    np.testing.assert_array_equal(
        future_dates(hours, 2), stamps("2020-01-01T05:00:00", "2020-01-01T06:00:00")
    )
    months = stamps("2019-12-01", "2020-01-01", "2020-02-01")
    np.testing.assert_array_equal(future_dates(months, 2), stamps("2020-03-01", "2020-04-01"))
    for dates, message in [(hours[:1], "1 dates"), (hours[::-1], "do not grow")]:
        with pytest.raises(UserError, match=message):
            future_dates(dates, 1)


def test_dates_are_told_from_numbers_and_words():
    assert all(
        map(looks_like_date, ["2020-01-01", "1990/1/1 0:00", "1.2.2020 3:04", "2020-1-1T0:0"])
    )
    assert not any(
        map(looks_like_date, ["2020", "1.5", "1/2/2020", "date", "", "2020-01/01", "1-2"])
    )
