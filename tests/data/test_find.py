"""The order of places, and that no network, however broken, makes anyone wait."""

import hashlib
import http.server
import importlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rflib.core.errors import UserError
from rflib.data import Remote, find

finding = importlib.import_module("rflib.data.find")  # rflib.data.find itself is the function
CONTENT = b"a,b\n1,2\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RFLIB_CACHE", str(tmp_path / "cache"))
    for name in ("RFLIB_DATA", "RFLIB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    finding._silent_hosts.clear()


class Handler(http.server.BaseHTTPRequestHandler):
    requests = 0

    def do_GET(self) -> None:
        Handler.requests += 1
        self.send_response(404 if "missing" in self.path else 200)
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_: object) -> None:
        """Says nothing on stderr."""


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        Handler.requests = 0
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_given_file_or_directory_is_taken_before_every_other_place(tmp_path, monkeypatch):
    mine = write(tmp_path / "mine" / "sub" / "b.csv")
    write(tmp_path / "root" / "set" / "a.csv")
    monkeypatch.setenv("RFLIB_DATA", str(tmp_path / "root"))
    assert find("set", ["a.csv"], path=mine) == mine
    assert find("set", ["a.csv", "sub/b.csv"], path=tmp_path / "mine") == mine


def test_a_given_path_that_fails_is_an_error_even_if_another_place_has_the_file(
    tmp_path, monkeypatch
):
    write(tmp_path / "root" / "set" / "a.csv")
    monkeypatch.setenv("RFLIB_DATA", str(tmp_path / "root"))
    with pytest.raises(UserError, match=r"roof' does not exist; nearest: .*root$"):
        find("set", ["a.csv"], path=tmp_path / "roof", instead="something else")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty.* holds none of a.csv, b.csv"):
        find("set", ["a.csv", "b.csv"], path=tmp_path / "empty", instead="something else")


def test_places_are_tried_in_order_environment_package_download(tmp_path, monkeypatch, server):
    asked: list[str] = []
    packaged = write(tmp_path / "package" / "a.csv")

    def shipped() -> Path:
        asked.append("package")
        return packaged

    remotes = [Remote(f"{server}/a.csv", SHA256, "CC0")]
    monkeypatch.setenv("RFLIB_DATA", str(tmp_path / "root"))
    assert find("set", ["a.csv"], shipped=shipped, remotes=remotes) == packaged
    assert (asked, Handler.requests) == (["package"], 0)
    local = write(tmp_path / "root" / "set" / "a.csv")
    assert find("set", ["a.csv"], shipped=shipped, remotes=remotes) == local
    assert asked == ["package"]
    local.unlink()
    packaged.unlink()
    found = find("set", ["a.csv"], shipped=shipped, remotes=remotes, notice=asked.append)
    assert found is not None and found.read_bytes() == CONTENT
    assert "CC0" in asked[-1]


def test_a_download_is_cached_verified_and_asked_for_once(server, tmp_path):
    remote = Remote(f"{server}/a.csv", SHA256, "CC0")
    first = find("set", ["a.csv"], remotes=[remote], notice=lambda _: None)
    assert first == tmp_path / "cache" / "data" / "set" / "a.csv"
    assert find("set", ["a.csv"], remotes=[remote]) == first
    assert Handler.requests == 1
    first.write_bytes(b"tampered")
    again = find("set", ["a.csv"], remotes=[remote], notice=lambda _: None)
    assert again is not None and again.read_bytes() == CONTENT
    assert Handler.requests == 2


def test_a_download_with_another_sha256_is_not_kept(server, tmp_path):
    remote = Remote(f"{server}/a.csv", "0" * 64, "CC0")
    lines: list[str] = []
    assert find("set", ["a.csv"], remotes=[remote], instead="noise", notice=lines.append) is None
    assert "does not have the known SHA-256" in lines[-1]
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_an_http_error_is_one_readable_line(server):
    remote = Remote(f"{server}/missing.csv", SHA256, "CC0")
    with pytest.raises(UserError, match=r"missing\.csv: HTTP 404"):
        find("set", ["a.csv"], remotes=[remote], notice=lambda _: None)


def test_a_refused_connection_gives_one_notice_and_none():
    with socket.socket() as blocked:  # bound, never listening: connections are refused
        blocked.bind(("127.0.0.1", 0))
        remote = Remote(f"http://127.0.0.1:{blocked.getsockname()[1]}/a.csv", SHA256, "CC0")
        lines: list[str] = []
        begin = time.monotonic()
        assert (
            find("set", ["a.csv"], remotes=[remote], instead="noise", notice=lines.append) is None
        )
    assert time.monotonic() - begin < 3
    assert len(lines) == 2 and lines[0].startswith("downloading")
    for part in ("set: a.csv was not found", "RFLIB_DATA is not set", "no connection to 127.0.0.1",
                 "$RFLIB_DATA/set/a.csv", remote.url, "CC0", "Going on with noise"):  # fmt: skip
        assert part in lines[1]


def test_a_host_that_accepts_and_stays_silent_is_left_in_time_and_not_asked_again(monkeypatch):
    assert finding.PATIENCE < 10
    monkeypatch.setattr(finding, "PATIENCE", 0.4)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        remotes = [Remote(f"{url}/{name}.csv", SHA256, "CC0") for name in "abcdefgh"]
        begin = time.monotonic()
        assert find("set", ["a.csv"], remotes=remotes, instead="x", notice=lambda _: None) is None
        assert time.monotonic() - begin < 3
        begin = time.monotonic()
        assert find("set", ["a.csv"], remotes=remotes, instead="x", notice=lambda _: None) is None
        assert time.monotonic() - begin < 0.2


def test_a_name_that_never_resolves_does_not_hang(monkeypatch):
    monkeypatch.setattr(finding, "PATIENCE", 0.4)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(60))
    remote = Remote("http://example.invalid/a.csv", SHA256, "CC0")
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"no connection to example\.invalid"):
        find("set", ["a.csv"], remotes=[remote], notice=lambda _: None)
    assert time.monotonic() - begin < 3


def test_offline_by_wish_and_without_pooch_are_named(monkeypatch, server):
    remote = Remote(f"{server}/a.csv", SHA256, "CC0")
    monkeypatch.setenv("RFLIB_OFFLINE", "1")
    with pytest.raises(UserError, match="RFLIB_OFFLINE is set"):
        find("set", ["a.csv"], remotes=[remote])
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UserError, match=r"pip install 'rflib\[data\]'"):
        find("set", ["a.csv"], remotes=[remote])
    assert Handler.requests == 0


def test_an_unwritable_cache_is_a_reason_not_a_traceback(monkeypatch, server, tmp_path):
    write(tmp_path / "file")
    monkeypatch.setenv("RFLIB_CACHE", str(tmp_path / "file"))
    remote = Remote(f"{server}/a.csv", SHA256, "CC0")
    with pytest.raises(UserError, match=r"a\.csv was not found.*file"):
        find("set", ["a.csv"], remotes=[remote], notice=lambda _: None)


def test_a_package_that_is_not_installed_is_one_of_the_places(tmp_path, monkeypatch):
    def shipped() -> Path:
        raise ImportError("No module named 'sklearn'")

    monkeypatch.setenv("RFLIB_DATA", str(tmp_path / "no" / "root"))
    with pytest.raises(UserError, match=r"no such directory.*No module named 'sklearn'.*by hand"):
        find("set", ["a.csv"], shipped=shipped, hint="Make it by hand.")


def test_importing_the_room_loads_no_downloader():
    code = "import sys, rflib.data; print({'pooch', 'requests', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
