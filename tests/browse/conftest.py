"""Fixtures: a filesystem whose files have two versions, and pages served by the real command."""

import os
import stat
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.browse import chromium
from tests.browse.chromium import Browser
from tests.browse.serving import Served, serving
from tests.conftest import REQUIRED
from tests.programs import Program

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
LONG: Final = "l" * 255
FIRST: Final = b"one\ntwo\nthree\n"
SECOND: Final = b"one\n2\nthree\nfour <b>\n"


def picture() -> bytes:
    """Return a small PNG picture."""

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


def _fill_strange(folder: Path) -> None:
    """Create special files and files with unusual names, for tests of archives."""
    folder.mkdir()
    (folder / LONG).write_bytes(b"long")
    (folder / "setuid").write_bytes(b"#!/bin/sh\n")
    (folder / "setuid").chmod(0o4755)
    (folder / "before 1970").touch()
    os.utime(folder / "before 1970", ns=(-1_500_000_000, -1_500_000_000))
    (folder / "out").symlink_to("../../../etc/passwd")
    os.mkfifo(folder / "pipe")
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)
    if os.geteuid() == 0:
        os.mknod(folder / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))


def _fill(program: Program, mnt: Path) -> None:
    (mnt / "reports").mkdir()
    (mnt / "reports" / "report.txt").write_bytes(FIRST)
    (mnt / "reports" / "old name").write_bytes(b"removed later")
    (mnt / "reports" / "notes").write_bytes(b"short")
    (mnt / "reports" / "former").write_bytes(b"before the rename\n")
    program.ok("flush", mnt)
    program.ok("keep", mnt, "before-the-change")
    (mnt / "reports" / "report.txt").write_bytes(SECOND)
    (mnt / "reports" / "notes").write_bytes(b"much longer")
    (mnt / "reports" / "old name").unlink()
    (mnt / "reports" / "former").rename(mnt / "latter")
    (mnt / "latter").write_bytes(b"after the rename\n")
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
    _fill_strange(mnt / "strange")
    (mnt / "many").mkdir()
    for number in range(NAMES):
        (mnt / "many" / f"{number:05}").touch()
    program.ok("flush", mnt)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve an unmounted filesystem from its bucket, without its local state."""
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
    words = ["--cachedir", f"{place}/elsewhere", url]
    with serving(words, program.environment, place / "copy", txg) as found:
        yield found
    assert list((place / "elsewhere").glob("*/meta.db")) == []


@pytest.fixture(scope="module")
def browser(served: Served) -> Iterator[Browser]:
    """Return a logged-in browser, shared by tests that expect no console messages."""
    require_chromium()
    with chromium.started() as found:
        found.log_in(served)
        yield found


def require_chromium() -> None:
    """Skip a test if no browser is installed, unless a browser is required."""
    if chromium.PROGRAM is None and "chromium" not in REQUIRED:
        pytest.skip("chromium is not installed (Debian package chromium)")
