"""The undisturbed runs that the disturbed ones are compared with, each made once."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.system.starting import ended, start


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """undisturbed(*flags, **settings of `start`): the directory of such a run that ended well."""

    @functools.cache
    def run(*flags: str, **settings: Any) -> Path:
        workdir = tmp_path_factory.mktemp("undisturbed") / "run"
        ended(start(workdir, *flags, **settings), 0)
        return workdir

    return run
