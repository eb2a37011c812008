"""A filesystem with two versions of its files, and the pages of it, served by the real command."""

import http.client
import os
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.programs import PROCESS_S_MAX, Program

HOSTILE: Final = (
    b"<script>alert(1)<",
    b"new\nline",
    b"\xff\xfe",
    b"\"quotes\" & 'those'",
    b"%2e%2e%2f",
    b"q?x#y",
    "\u202egnp.exe".encode(),
    b" blank",
    b"back\\slash;",
)
NAMES: Final = 1200
FIRST: Final = b"one\ntwo\nthree\n"
SECOND: Final = b"one\n2\nthree\nfour <b>\n"


class Reply(NamedTuple):
    """The reply to one request."""

    status: int
    headers: http.client.HTTPMessage
    content: bytes

    @property
    def text(self) -> str:
        """Return the content as text."""
        return self.content.decode()


class Served(NamedTuple):
    """A running command, and the tree that it shows."""

    port: int
    token: str
    cookie: str
    tree: Path  # a copy of the newest tree
    txg: int  # the newest txg

    def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Send one request, with the cookie unless the headers have one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PROCESS_S_MAX)
        try:
            connection.request(method, path, headers={"Cookie": self.cookie, **headers})
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def page(self, path: str) -> str:
        """Return a page, which must exist."""
        reply = self.ask(path)
        assert reply.status == 200, reply.text
        return reply.text


def picture() -> bytes:
    """Return a small picture in PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    rows = b"".join(
        b"\0" + b"".join(bytes((x, 2 * y, 120)) for x in range(160)) for y in range(100)
    )
    header = struct.pack(">IIBBBBB", 160, 100, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def _fill(program: Program, mnt: Path) -> None:
    (mnt / "reports").mkdir()
    (mnt / "reports" / "report.txt").write_bytes(FIRST)
    (mnt / "reports" / "old name").write_bytes(b"removed later")
    (mnt / "reports" / "notes").write_bytes(b"short")
    program.ok("flush", mnt)
    (mnt / "reports" / "report.txt").write_bytes(SECOND)
    (mnt / "reports" / "notes").write_bytes(b"much longer")
    (mnt / "reports" / "old name").unlink()
    (mnt / "reports" / "picture.png").write_bytes(picture())
    (mnt / "reports" / "picture.svg").write_bytes(b"<svg onload='alert(1)'/>")
    (mnt / "reports" / "page.html").write_bytes(b"<script>alert(1)</script>")
    (mnt / "reports" / "link").symlink_to("report.txt")
    os.link(mnt / "reports" / "report.txt", mnt / "reports" / "again")
    with (mnt / "reports" / "sparse").open("wb") as file:
        file.truncate(3 << 20)
        file.seek(5 << 20)
        file.write(b"the end")
    (mnt / "reports" / "large").write_bytes(os.urandom(2 << 20))
    (mnt / "hostile").mkdir()
    for name in HOSTILE:
        with open(os.path.join(os.fsencode(mnt), b"hostile", name), "wb") as file:
            file.write(name)
    (mnt / "many").mkdir()
    for number in range(NAMES):
        (mnt / "many" / f"{number:05}").touch()
    program.ok("flush", mnt)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a filesystem that was unmounted, from its bucket, without its local state."""
    place = tmp_path_factory.mktemp("browse")
    program, url, mnt = Program(place / "state"), f"local://{place}/bucket", place / "mnt"
    mnt.mkdir()
    program.ok("mkfs", "--plain", "--label", "photos", url)
    program.ok("mount", url, mnt)
    try:
        _fill(program, mnt)
        subprocess.run(["cp", "-a", mnt, place / "copy"], check=True)
    finally:
        program.ok("umount", mnt)
    txg = int(program.status(url)["txg"])
    words = [sys.executable, "-m", "s3fs_meta", "browse", "--cachedir", f"{place}/elsewhere", url]
    with subprocess.Popen(
        words, env=program.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = process.stdout.readline().strip()
            port = int(printed.partition("127.0.0.1:")[2].partition("/")[0])
            token = printed.partition("token=")[2]
            begun = Served(port, token, "", place / "copy", txg)
            cookie = begun.ask(f"/?token={token}").headers["Set-Cookie"].partition(";")[0]
            yield begun._replace(cookie=cookie)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PROCESS_S_MAX) == 0
    assert list((place / "elsewhere").glob("*/meta.db")) == []
