"""Places on the disk, for tests in which a process gives up its rights."""

import tempfile
from pathlib import Path


def open_to_others(directory: Path) -> None:
    """Lets every user look into `directory`, which pytest and its workers close to all but one."""
    top = Path(tempfile.gettempdir()).resolve()
    for path in (directory.resolve(), *directory.resolve().parents):
        if path == top or top not in path.parents:
            break
        path.chmod(0o755)
