"""Where data are found: a given path, $RFLIB_DATA, an installed package, a verified download."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

from rflib.core import checks
from rflib.core.errors import UserError

PATIENCE = 8.0  # seconds without a byte after which a download is given up; one find waits once
_silent_hosts: set[str] = set()  # did not answer in this process: not waited for a second time


class Remote(NamedTuple):
    """One file that may be downloaded: where, what it must hash to, under which terms."""

    url: str
    sha256: str
    licence: str


class Unavailable(Exception):
    """Why one place did not give the file; joins the list of places looked at."""


def find(
    name: str,
    filenames: Sequence[str],
    *,
    path: str | Path = "",
    shipped: Callable[[], str | Path | None] | None = None,
    remotes: Sequence[Remote] = (),
    hint: str = "",
    instead: str | None = None,
    notice: Callable[[str], None] = print,
) -> Path | None:
    """Finds one file of the data set `name`, in a fixed order of places.

    1. `path`, a file or a directory that holds one of `filenames`: nothing else is tried then.
    2. `$RFLIB_DATA/<name>/`.  3. `shipped()`, a file inside an installed package.
    4. a download of one of `remotes`, kept only if its SHA-256 is the known one (the cache is
    `$RFLIB_CACHE` or `~/.cache/rflib`; `RFLIB_OFFLINE=1` never asks the network).

    Args:
        name: the data set, and its folder under `$RFLIB_DATA`.
        filenames: the file's possible relative paths, best first, e.g.
            ("ETTh1.csv", "ETTh1.csv.gz", "ETT-small/ETTh1.csv").
        path: the user's own choice; "" for none.
        shipped: returns a path or None; an ImportError counts as None.
        hint: one sentence on how a person gets the file.
        instead: what the caller will use when there is no file ("generated data"): then one
            notice says so and None is returned. None: the file is needed.
        notice: receives lines for people.

    Raises:
        UserError: `path` does not hold the file, or nothing was found and `instead` is None. The
            message names the file, the places looked at and the ways to get it.
    """
    if path:
        return _explicit(name, filenames, Path(path).expanduser(), hint)
    looked: list[str] = []
    for place in (
        lambda: _environment(name, filenames),
        lambda: _shipped(shipped),
        lambda: _remote(name, remotes, notice),
    ):
        try:
            return place()
        except Unavailable as reason:
            looked.append(str(reason))
    ways = _ways(name, filenames, remotes, hint)
    text = f"{name}: {filenames[0]} was not found ({'; '.join(filter(None, looked))}). {ways}"
    if instead is None:
        raise UserError(text)
    notice(f"{text} Going on with {instead}.")
    return None


def cache_root() -> Path:
    """`$RFLIB_CACHE`, or `~/.cache/rflib`."""
    return Path(os.environ.get("RFLIB_CACHE") or Path.home() / ".cache" / "rflib").expanduser()


def _first(folder: Path, filenames: Sequence[str]) -> Path | None:
    return next((folder / name for name in filenames if (folder / name).is_file()), None)


def _explicit(name: str, filenames: Sequence[str], path: Path, hint: str) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        found = _first(path, filenames)
        if found is not None:
            return found
        raise UserError(
            f"path={str(path)!r} holds none of {', '.join(filenames)}. "
            + _ways(name, filenames, (), hint)
        )
    there = path.parent.iterdir() if path.parent.is_dir() else ()
    near = checks.nearest(path.name, sorted(other.name for other in there))
    nearest = f"; nearest: {', '.join(str(path.parent / other) for other in near)}" if near else ""
    raise UserError(f"path={str(path)!r} does not exist{nearest}")


def _environment(name: str, filenames: Sequence[str]) -> Path:
    root = os.environ.get("RFLIB_DATA")
    if not root:
        raise Unavailable("RFLIB_DATA is not set")
    folder = Path(root).expanduser() / name
    found = _first(folder, filenames)
    if found is None:
        state = "not there" if folder.is_dir() else "no such directory"
        raise Unavailable(f"{folder}: {state}")
    return found


def _shipped(shipped: Callable[[], str | Path | None] | None) -> Path:
    if shipped is None:
        raise Unavailable("")
    try:
        found = shipped()
    except ImportError as error:
        raise Unavailable(f"package data: {error}") from error
    if found is None or not Path(found).is_file():
        raise Unavailable("package data: not there")
    return Path(found)


def _ways(name: str, filenames: Sequence[str], remotes: Sequence[Remote], hint: str) -> str:
    ways = [f"put it at $RFLIB_DATA/{name}/{filenames[0]}", "give its path"]
    ways += [f"download {remote.url} (licence: {remote.licence})" for remote in remotes]
    return f"Ways to get it: {', or '.join(ways)}.{' ' + hint if hint else ''}"


def _remote(name: str, remotes: Sequence[Remote], notice: Callable[[str], None]) -> Path:
    if not remotes:
        raise Unavailable("no download is known")
    folder, reasons, end = cache_root() / "data" / name, [], time.monotonic() + PATIENCE
    for remote in remotes:
        try:
            return download(remote, folder, notice=notice, patience=end - time.monotonic())
        except Unavailable as reason:
            reasons.append(str(reason))
    raise Unavailable("; ".join(reasons))


def download(
    remote: Remote,
    folder: Path,
    *,
    notice: Callable[[str], None] = print,
    patience: float = PATIENCE,
) -> Path:
    """The file of `remote` in `folder`, downloaded unless it is there with the right SHA-256.

    Gives up after `patience` seconds without a byte, whatever the network does (names that do not
    resolve, silent hosts), by leaving the transfer to a daemon thread.

    Raises:
        Unavailable: no pooch, no network, no such page, another SHA-256, no room; in one line.
    """
    try:
        import pooch
    except ImportError as error:
        raise Unavailable("no download without pooch: pip install 'rflib[data]'") from error
    parts = urlparse(remote.url)
    target = folder / Path(parts.path).name
    known = f"sha256:{remote.sha256}"
    if target.is_file() and pooch.file_hash(str(target), alg="sha256") == remote.sha256:
        return target
    if os.environ.get("RFLIB_OFFLINE", "0") not in ("", "0"):
        raise Unavailable("no download: RFLIB_OFFLINE is set")
    if parts.netloc in _silent_hosts or patience <= 0:
        raise Unavailable(f"{parts.netloc} does not answer")
    notice(f"downloading {remote.url} to {target} (licence: {remote.licence})")
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        pooch.retrieve(remote.url, known, target.name, folder, downloader=_bounded(patience))
    except (OSError, ValueError) as error:
        raise Unavailable(_why(error, parts.netloc, remote.url)) from error
    finally:
        logger.setLevel(level)
    return target


def _bounded(patience: float) -> Callable[..., None]:
    """A pooch downloader that raises TimeoutError after `patience` seconds without a byte."""
    import pooch

    def fetch(url: str, file: str, manager: object) -> None:
        failure: list[Exception] = []

        def work() -> None:
            try:
                pooch.HTTPDownloader(timeout=patience)(url, file, manager)
            except Exception as error:
                failure.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        size, moved = -1, time.monotonic()
        while thread.is_alive():
            thread.join(0.05)
            now = os.path.getsize(file) if os.path.exists(file) else 0
            if now != size:
                size, moved = now, time.monotonic()
            elif time.monotonic() - moved > patience:
                raise TimeoutError(f"no byte in {patience:.0f} s")
        if failure:
            raise failure[0]

    return fetch


def _why(error: Exception, host: str, url: str) -> str:
    import requests

    if isinstance(error, TimeoutError | requests.ConnectionError | requests.Timeout):
        _silent_hosts.add(host)
        return f"no connection to {host}"
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{url}: HTTP {error.response.status_code}"
    if isinstance(error, ValueError) and "hash" in str(error).lower():
        return f"{url}: the content does not have the known SHA-256 and was not kept"
    return f"{url}: {error}"
