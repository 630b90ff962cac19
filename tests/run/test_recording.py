"""A config key that nobody reads is found."""

from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from rflib.run import Run, recording

CONFIG = {"seed": 0, "steps": 1, "model": {"width": 2, "depth": 3}, "optim": {"lr": 0.1, "b": 1}}


def reads(config: Any, run: Any) -> None:
    assert config.steps == 1 and config.model["width"] == 2
    assert dict(**config.optim) == {"lr": 0.1, "b": 1}
    assert "depth" in config.model and len(config.model) == 2
    run.note(str(config.get("absent", "none")))


@pytest.mark.parametrize("kind", [FrozenConfigDict, ConfigDict, dict])
def test_keys_that_are_never_read_are_named(tmp_path: Path, kind: Any) -> None:
    config = kind(CONFIG)
    with Run.open(tmp_path, config, quiet=True) as run:
        assert recording.unread_keys(reads, config, run) == ["model.depth", "seed"]


def test_reading_a_whole_section_reads_its_keys() -> None:
    watched = recording.Recording(FrozenConfigDict(CONFIG))
    assert watched.model.to_dict() == {"width": 2, "depth": 3}
    assert watched.unread() == ["optim.b", "optim.lr", "seed", "steps"]
    assert [value for _, value in watched.optim.items()] == [1, 0.1]
    assert watched.unread() == ["seed", "steps"]


def test_an_unknown_key_is_an_error_as_in_the_config_itself() -> None:
    with pytest.raises(AttributeError, match="widht"):
        _ = recording.Recording(FrozenConfigDict(CONFIG)).model.widht
