"""Configs without a command line: the values, and errors of one line with the nearest names."""

from pathlib import Path
from typing import Any

import pytest

from rflib.core.errors import UserError
from rflib.run import config as configs
from rflib.run import help as pages
from rflib.run import load_config, record
from tests.run import project


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project.write(tmp_path))
    return tmp_path


def test_overrides_are_set_and_the_result_is_frozen_and_hashable(folder: Path) -> None:
    overrides = {"steps": 5, "data.sizes": [3, 4], "data.path": "x.csv", "data.limit": 9}
    found = load_config("toy", "tiny", overrides)
    assert (found.steps, found.data.sizes, found.data.path) == (5, (3, 4), "x.csv")
    assert found.data.limit == 9
    assert hash(found) == hash(load_config(folder / "configs" / "toy.py", "tiny", overrides))
    with pytest.raises(AttributeError):
        found.steps = 6


@pytest.mark.parametrize(
    ("name", "variant", "overrides", "message"),
    [
        ("ty", "tiny", {}, "configs/ty.py does not exist; nearest: configs/toy.py"),
        ("toy", "tny", {}, "variant='tny' is not one of 'tiny', 'default'; did you mean 'tiny'"),
        ("toy", "tiny", {"modle.rate": 1.0}, "config.modle.rate is no key .*config.model.rate"),
        ("toy", "tiny", {"rate": 1.0}, "config.rate is no key .*config.model.rate"),
        ("toy", "tiny", {"steps": 1.5}, r"config.steps=1.5 must be a whole number \(now 3\)"),
        ("toy", "tiny", {"steps": "x"}, "config.steps='x' must be a whole number"),
        ("toy", "tiny", {"data.limit": "x"}, "config.data.limit='x' must be a whole number"),
        ("toy", "tiny", {"model.rate": "x"}, r"config.model.rate='x' must be a number \(now 0.1"),
        ("toy", "tiny", {"data": 3}, "config.data=3 must be a section"),
        ("toy", "tiny", {"steps": {"a": 1}}, "config.steps={'a': 1} must be a whole number"),
        ("toy", "tiny", {"steps.more": 1}, "config.steps.more is no key"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_valid_names(
    folder: Path, name: str, variant: str, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        load_config(name, variant, overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def get_config(variant):\n  return 1 / 0", "mine.py:2: ZeroDivisionError"),
        ("x = 1\nx = = 2", "mine.py:2: SyntaxError"),
        ("import nowhere", "mine.py:1: ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1", "has no function get_config"),
    ],
)
def test_a_broken_config_file_is_named_with_its_line(
    folder: Path, source: str, message: str
) -> None:
    (folder / "mine.py").write_text(source)
    with pytest.raises(UserError, match=message):
        load_config("mine.py")


def test_the_config_of_a_run_comes_back_from_its_record(folder: Path) -> None:
    then = load_config("toy", "tiny", {"data.sizes": (5, 6), "model.rate": float("inf")})
    record.write(folder, record.Record("toy", "tiny", "", {}, record.nested(then)))
    found = configs.freeze(configs.recorded(record.required(folder), folder))
    assert found == then


def test_the_config_of_an_older_run_keeps_its_values_and_names_the_new_keys(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = record.nested(load_config("toy", "tiny", {"steps": 9}))
    del values["model"]["bias"]
    values["gone"] = 1
    found = configs.recorded(record.Record("toy", "tiny", "", {}, values), folder)
    assert found.steps == 9 and found.model.bias is True and "gone" not in found
    told = capsys.readouterr().err
    assert "config.model.bias is newer" in told and "config.gone of the run" in told


def test_without_its_config_file_the_record_alone_is_the_config(folder: Path) -> None:
    then = load_config("toy", "tiny")
    (folder / "configs" / "toy.py").unlink()
    found = configs.recorded(record.Record("toy", "tiny", "", {}, record.nested(then)), folder)
    assert configs.freeze(found) == then


def test_the_trailing_comment_of_every_way_to_write_a_key_is_found(folder: Path) -> None:
    source = """
from ml_collections import ConfigDict

def get_config(variant="default"):
    c = ConfigDict()
    c.plain = 1  # plain
    c.deep = ConfigDict()
    c.deep.leaf = (  # opening
        2,
    )  # deep leaf
    c.literal = {
        "a": 1,  # literal a
        "b": {"x": 1},  # literal b
    }
    c.call = ConfigDict(dict(
        w=3,  # call w
    ))
    section = ConfigDict()
    section.key = 1  # section key
    c.section = section
    c.made = _made()
    c.many = ConfigDict({name: _made() for name in ("p", "q")})
    c.plain = 2  # not the first
    return c

def _made():
    d = ConfigDict()
    d.z = 1  # made z
    return d
"""
    (folder / "mine.py").write_text(source)
    notes = pages.comments(folder / "mine.py")
    keys = list(record.flat(load_config("mine.py")))
    assert {key: pages.comment(notes, key)[1] for key in keys} == {
        "plain": "plain",
        "deep.leaf": "deep leaf",
        "literal.a": "literal a",
        "literal.b.x": "literal b",
        "call.w": "call w",
        "section.key": "section key",
        "made.z": "made z",
        "many.p.z": "made z",
        "many.q.z": "made z",
    }
