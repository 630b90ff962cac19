"""Line logs (JSON Lines) of a run that may be killed anywhere and continued.

A continued run executes its experiment again from the top, and what the experiment logs again is
recognised: the line keeps its place, so the file ends as if the run had never been interrupted.
"""

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

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
        self._file: TextIO | None = None
        self._earlier: dict[str, deque[Record]] = {}
        self._place: dict[str, int] = {}
        records = read(path)
        if records:
            self._rewrite(records)  # drops a torn last line before anything is appended to it
        for record in records if recognise else []:
            self._earlier.setdefault(record.get("phase", ""), deque()).append(record)

    def append(self, record: Record) -> None:
        """Writes one record, or recognises it as one that an earlier session wrote."""
        record = files.plain(record)
        phase = record.get("phase", "")
        if phase in self._earlier and self._recognised(phase, record):
            return
        if phase in self._place:
            records = read(self._path)
            records.insert(self._place[phase], record)
            self._place[phase] += 1
            self._rewrite(records)
            return
        try:
            if self._file is None:
                self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
            self._file.write(files.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise files.unwritable(self._path, error) from error

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

        If lines of later phases follow, what `phase` logs from now on goes before them.
        """
        kept: list[Record] = []
        number, place = 0, None
        for record in read(self._path):
            mine = record.get("phase", "") == phase
            if not mine or keep(number, record):
                kept.append(record)
            elif place is None:
                place = len(kept)
            number += mine
        self._rewrite(kept)
        self._earlier.pop(phase, None)
        self._place.pop(phase, None)
        if place is not None and place < len(kept):
            self._place[phase] = place

    def _rewrite(self, records: list[Record]) -> None:
        self.close()
        files.write_text(self._path, "".join(files.dumps(record) + "\n" for record in records))

    def close(self) -> None:
        """Closes the file; a later append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
