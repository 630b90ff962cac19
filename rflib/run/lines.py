"""Line logs (JSON Lines) of a run that may be killed anywhere and continued.

A continued run executes its experiment again from the top, and what the experiment logs again is
recognised: the line keeps its place, so the file ends as if the run had never been interrupted.
"""

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from rflib.run import files

Record = dict[str, Any]
CLOCK = "time"


def each(path: Path) -> Iterator[Record]:
    """The whole lines of a log; the torn last line of a killed writer is left out."""
    with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as file:
        for line in file:
            record = _parse(line)
            if record is not None:
                yield record


def read(path: Path) -> list[Record]:
    """`each`, at once."""
    return list(each(path))


def _torn(path: Path) -> bool:
    """Whether the last line has no end: its writer was killed."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except FileNotFoundError:
        return False


def _parse(line: str) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _timeless(record: Mapping[str, Any]) -> Record:
    return {name: value for name, value in record.items() if name != CLOCK}


def _identity(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record.get("step"), record.get("seed"), *sorted(record)


class LineLog:
    """Appends records, one a line, each flushed.

    With `recognise`, a record logged again after a restart (same phase, step, seed and names)
    replaces its earlier self in place instead of being appended.
    """

    def __init__(self, path: Path, *, recognise: bool):
        self._path = path
        self._file: FileIO | None = None
        self._earlier: dict[str, deque[Record]] = {}
        self._recognise = recognise
        records = read(path)
        if _torn(path):
            self._rewrite(records)  # before anything is appended to half a line
        for record in records if recognise else []:
            self._earlier.setdefault(record.get("phase", ""), deque()).append(record)

    def append(self, record: Record) -> None:
        """Writes one record, or recognises it as one that an earlier session wrote."""
        record = files.plain(record)
        phase = record.get("phase", "")
        if phase in self._earlier and self._recognised(phase, record):
            return
        try:
            self._write(files.dumps(record).encode() + b"\n")
        except OSError as error:
            raise files.unwritable(self._path, error) from error

    def _write(self, line: bytes) -> None:
        """Adds a whole line or nothing, unbuffered: a full disk leaves no half of one."""
        if self._file is None:
            self._file = FileIO(self._path, "a")
        size = self._file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:]) or 0
        except OSError:
            self._file.truncate(size)
            raise

    def _recognised(self, phase: str, record: Record) -> bool:
        earlier = self._earlier[phase]
        same = (i for i, old in enumerate(earlier) if _identity(old) == _identity(record))
        index = next(same, None)
        if index is None:
            return False
        old = earlier[index]
        for _ in range(index + 1):
            earlier.popleft()
        if _timeless(old) != _timeless(record):
            self._rewrite([record if line == old else line for line in read(self._path)])
        return True

    def cut(self, phase: str, keep: Callable[[int, Record], bool]) -> None:
        """Drops each line of `phase` for which keep(its number within the phase, line) is false.

        Where lines of later phases follow, the phase had come to its end and is only being told
        again: its lines stay to be recognised, and keep their place also if that is interrupted.
        """
        records = read(self._path)
        mine = [i for i, record in enumerate(records) if record.get("phase", "") == phase]
        dropped = [i for number, i in enumerate(mine) if not keep(number, records[i])]
        self._earlier.pop(phase, None)
        if not dropped:
            return
        if self._recognise and set(range(dropped[0], len(records))) - set(mine):
            self._earlier[phase] = deque(records[i] for i in dropped)
            return
        gone = set(dropped)
        self._rewrite([record for i, record in enumerate(records) if i not in gone])

    def _rewrite(self, records: list[Record]) -> None:
        self.close()
        files.write_text(self._path, "".join(files.dumps(record) + "\n" for record in records))

    def close(self) -> None:
        """Closes the file; a later append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
