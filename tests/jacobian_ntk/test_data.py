"""The forest fires with their broken row, other tables, nets of the sphere, the teacher."""

import sys

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import data

MEANS = [213.5, 32.172, 61.939, 15.504, 0.761, 77.888, 14.673, 49.288, 4.76, 16.673, 7.049]


def test_forest_fires_are_read_whole_and_their_broken_row_is_mended(data_root):
    raw = data.algerian()
    assert raw.x.shape == (244, 11) and raw.repairs == 1
    assert (raw.y == 1).sum() == 138 and (raw.y == -1).sum() == 106
    np.testing.assert_allclose(raw.x.mean(0), MEANS, atol=5.1e-4)
    assert len(np.unique(raw.x, axis=0)) == 244
    assert raw.columns[:3] == ("day of year", "Temperature", "RH") and raw.columns[-1] == "FWI"
    # 14/7/2012 of the second region: day 196 of a leap year, DC 14.6, ISI 9, BUI 12.5, FWI 10.4.
    broken = raw.x[122 + 30 + 13]
    assert broken.tolist() == [196, 37, 37, 18, 0.2, 88.9, 12.9, 14.6, 9, 12.5, 10.4]
    assert raw.y[122 + 30 + 13] == 1
    regions = data.algerian(region=True)
    assert regions.x[:, 0].tolist() == [0] * 122 + [1] * 122


def test_a_row_that_cannot_be_mended_is_named(data_root, tmp_path):
    text = (data_root / "jacobian_ntk" / data.ALGERIAN).read_text().splitlines()
    text[4] = text[4].replace(",", ";", 1)
    broken = tmp_path / "fires.csv"
    broken.write_text("\n".join(text))
    with pytest.raises(UserError, match=r"fires.csv line 5: not a row of day, month"):
        data.algerian(broken)


def test_without_the_file_rows_are_generated_with_a_notice(monkeypatch, tmp_path):
    monkeypatch.setenv("RFLIB_DATA", str(tmp_path))
    lines: list[str] = []
    raw = data.algerian(required=False, notice=lines.append)
    assert raw.x.shape == (244, 11) and len(lines) == 1 and raw.name == "generated"
    assert set(raw.y) == {1.0, -1.0} and abs(raw.y.sum()) <= 1
    with pytest.raises(UserError, match="was not found"):
        data.algerian()


@pytest.mark.parametrize("statistics", ["train", "all"])
def test_split_standardises_by_its_statistics_and_scales_rows(statistics):
    raw = data.generated(50, 4)
    raw.x[:, 2] = 7.0
    found = data.split(raw, 30, seed=3, statistics=statistics, unit=False)
    order = np.random.default_rng(3).permutation(50)
    np.testing.assert_array_equal(found.order, order)
    np.testing.assert_array_equal(found.y_train, raw.y[order[:30]])
    rows = found.x_train if statistics == "train" else np.concatenate([found.x_train, found.x_test])
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(rows.std(0), [1, 1, 0, 1], atol=1e-12)  # a constant column is 0
    unit = data.split(raw, 30, seed=3, statistics=statistics)
    np.testing.assert_allclose(np.linalg.norm(unit.x_test, axis=1), 1)
    with pytest.raises(UserError, match="n_train=51 must lie in"):
        data.split(raw, 51)


def test_own_tables_are_read_by_columns(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("a; b;kind\n1;2.5;yes\n\n3;4;no\n5;6;yes\n")
    found = data.read_table(path, "kind", positive="yes")
    np.testing.assert_array_equal(found.x, [[1, 2.5], [3, 4], [5, 6]])
    np.testing.assert_array_equal(found.y, [1, -1, 1])
    assert found.columns == ("a", "b")
    real = data.read_table(path, "b", features=("a",))
    np.testing.assert_array_equal(real.y, [2.5, 4, 6])
    for match, kwargs in (
        ("no column 'kin'; there is kind", {"label": "kin"}),
        (r"line 2, column 'kind': 'yes' is no finite number", {"label": "kind"}),
        ("only one class", {"label": "kind", "positive": "maybe"}),
        (r"column 'kind': 'yes' is no finite", {"label": "a", "features": ("kind",)}),
    ):
        with pytest.raises(UserError, match=match):
            data.read_table(path, **kwargs)
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(UserError, match="line 3: 1 cells, 2 are in the header"):
        data.read_table(path, "b")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"", {}, "the first line must be a header"),
        (b"\n\n", {}, "the first line must be a header"),
        (b"a,y\n\xff,1\n", {}, "no CSV text in UTF-8"),
        (b"a,y\n", {}, "two rows or more are needed, there are 0"),
        (b"a,y\n1,2\n", {}, "two rows or more are needed, there are 1"),
        (b"y\n1\n2\n", {}, "no column of inputs beside the labels 'y'"),
        (b"a,a,y\n1,2,1\n2,1,2\n", {}, "the header has column 'a' twice"),
        (b"a,y\n1,1\n2,2\n", {"features": ("a", "a")}, "each of them once"),
        (b"a,y\n1,1\n2,2\n", {"features": ("a", "y")}, "column 'y' is the label, and among"),
        (b"a,b,y\n1,2,1\n1,2,2\n", {}, "all rows are alike in a, b"),
        (b"a,y\n1,1\nnan,2\n", {}, "line 3, column 'a': 'nan' is no finite number$"),
        (b"a,y\n1,u\n2,v\n", {}, "'u' is no finite number: if labels are words, say which"),
        (b"a,y\n1,4\n2,4\n", {}, "only the label 4 in column 'y'"),
    ],
)
def test_a_table_that_nothing_can_be_learned_from_is_refused_by_name(
    tmp_path, text, options, message
):
    path = tmp_path / "my.csv"
    path.write_bytes(text)
    with pytest.raises(UserError, match=message):
        data.read_table(path, **options)


def test_sets_of_scikit_learn_need_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match="pip install scikit-learn"):
        data.shipped("breast_cancer")
    with pytest.raises(UserError, match="'digit' is not one of"):
        data.shipped("digit")


def test_sets_of_scikit_learn_are_labelled_as_said():
    pytest.importorskip("sklearn")
    for name, shape in zip(data.SETS, ((357, 64), (1797, 64), (569, 30), (442, 10)), strict=True):
        found = data.shipped(name)
        assert found.x.shape == shape
        assert name == "diabetes" or set(found.y) == {1.0, -1.0}


def test_net_of_the_sphere_is_that_of_farthest_points():
    net = data.sphere_net(256)
    np.testing.assert_allclose(np.linalg.norm(net, axis=1), 1)
    apart = np.linalg.norm(net[:, None] - net[None], axis=2) + 9 * np.eye(256)
    assert apart.min() == pytest.approx(0.3525, abs=5e-5)
    every = data.unit_rows(np.random.default_rng(0).normal(size=(20_000, 4)))
    covering = np.sqrt(np.maximum(2 - 2 * (every @ net.T).max(1), 0)).max()
    assert covering == pytest.approx(0.3519, abs=5e-5)
    np.testing.assert_array_equal(data.sphere_net(20), net[:20])


def test_teacher_has_the_jacobian_it_claims():
    x = data.sphere_net(9)
    _, jacobian = data.teacher(x)
    for alpha, way in enumerate(1e-6 * np.eye(4)):
        slope = (data.teacher(x + way)[0] - data.teacher(x - way)[0]) / 2e-6
        np.testing.assert_allclose(jacobian[:, alpha], slope, atol=1e-8)
    with pytest.raises(UserError, match="needs d >= 3"):
        data.teacher(x[:, :2])
