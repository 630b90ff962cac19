"""The commands over all experiments: list, reproduce, report."""

import json
from pathlib import Path

import pytest

from tests.run import project


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two systems, the first of which fails."""
    folder = tmp_path_factory.mktemp("two")
    project.write(folder, "broken")
    project.write(folder, "toy")
    config = folder / "configs" / "broken.py"
    config.write_text(config.read_text().replace('trouble = ""', 'trouble = "crash"'))
    return folder


def test_one_failing_system_does_not_stop_the_others_and_all_are_in_one_table(
    folder: Path,
) -> None:
    arguments = ("--variant", "tiny", "--workdir", "out")
    status, out, err = project.call(folder, "experiments.reproduce", *arguments)
    assert status == 1, err
    assert "broken: failed with exit status 1" in out and "RuntimeError: boom" in out
    assert "toy: 1 refuted" in out
    table = [line for line in out.splitlines() if line.startswith("| ")]
    assert [line.split("|")[1].strip() for line in table] == ["system", "broken", "toy"]
    assert "run failed" in table[1] and "refuted" in table[2]

    (folder / "out" / "toy-tiny" / "elsewhere").mkdir()
    status, out, _ = project.call(folder, "experiments.report", "out")
    assert status == 0 and out.splitlines() == out.strip().splitlines()
    assert [line.split("|")[1].strip() for line in out.splitlines()[2:]] == ["broken", "toy"]

    # A refuted claim is no failure, and what is done is not run again.
    report = folder / "out" / "toy-tiny" / "report.json"
    wall = json.loads(report.read_text())["wall_seconds"]
    status, out, _ = project.call(folder, "experiments.reproduce", *arguments, "--only", "toy")
    assert status == 0 and json.loads(report.read_text())["wall_seconds"] == wall

    (folder / "out").rename(folder / "runs")
    status, out, _ = project.call(folder, "experiments")
    assert status == 0 and "  Fits a line; a toy." in out and "3 steps, seconds" in out
    assert "  runs/toy-tiny (tiny): 1 refuted" in out
    assert "  runs/broken-tiny (tiny): failed" in out


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("experiments.reproduce", ("--variant", "tny"), "did you mean 'tiny'"),
        ("experiments.reproduce", ("--only", "toi"), "did you mean 'toy'"),
        ("experiments.reproduce", ("--varient=x",), "nearest: --variant"),
        ("experiments.report", ("nowhere",), "nowhere is no directory"),
        ("experiments", ("toi",), "did you mean 'toy'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    folder: Path, module: str, arguments: tuple[str, ...], message: str
) -> None:
    status, _, err = project.call(folder, module, *arguments)
    assert status == 2 and err.startswith("error: ") and message in err and err.count("\n") == 1
