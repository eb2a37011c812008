"""Tests of damaged objects whose content is restored when a user writes it again."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s3fs_meta.check.report import EXIT_CORRECTED
from s3fs_meta.limits import MIB
from tests.cli.conftest import Place
from tests.damage import flipped
from tests.end_to_end.hosts import host
from tests.polling import PROCESS_S_MAX
from tests.programs import Program
from tests.sampled import sampled

pytestmark = pytest.mark.mount


def _delete(pack: Path) -> None:
    pack.unlink()


def _flip(pack: Path) -> None:
    data = pack.read_bytes()
    pack.write_bytes(flipped(data, len(data) // 3))


def _cut(pack: Path) -> None:
    os.truncate(pack, 1000)


def _in_place(path: Path, content: bytes) -> None:
    """Overwrite a file in complete blocks, so that the kernel need not read the old content."""
    fd = os.open(path, os.O_WRONLY)
    try:
        for start in range(0, len(content), MIB):
            os.pwrite(fd, content[start : start + MIB], start)
            os.fsync(fd)
    finally:
        os.close(fd)


def _truncated(path: Path, content: bytes) -> None:
    """Truncate a file and write it, as cp does."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _renamed(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it onto the old file, as rsync does."""
    temporary = path.with_name(f".{path.name}.Xk3q9z")
    _truncated(temporary, content)
    temporary.rename(path)


@contextmanager
def _mounted(program: Program, place: Place) -> Iterator[Path]:
    program.ok("mount", "-o", "sync_interval=1h", place.url, place.mountpoint)
    yield place.mountpoint
    program.ok("umount", place.mountpoint)


def _packs(place: Place) -> list[Path]:
    return [path for path in (place.bucket / "pack").rglob("*") if path.is_file()]


def _require_lost(path: Path) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        path.read_bytes()


@pytest.mark.parametrize(
    ("damage", "write"),
    sampled(itertools.product([_delete, _flip, _cut], [_in_place, _truncated, _renamed]), 4),
)
def test_restoring_a_file_from_a_backup_heals_its_damaged_blocks(
    place: Place,
    program: Program,
    tmp_path: Path,
    damage: Callable[[Path], None],
    write: Callable[[Path, bytes], None],
) -> None:
    """Writing one file again restores every file with the same content, on every host."""
    content = os.urandom(2 * MIB if write is _in_place else 2 * MIB + 500_000)
    with _mounted(program, place) as mnt:
        for name in ("file", "same"):
            (mnt / name).write_bytes(content)
    [pack] = [path for path in (place.bucket / "pack").rglob("*") if path.is_file()]
    damage(pack)
    owner = Program(tmp_path / "owner")
    with _mounted(owner, place) as mnt:
        _require_lost(mnt / "file")
        with host(tmp_path, place.url, "reader", "ro,follow,poll=0.1") as reader:
            _require_lost(reader.mnt / "same")
            write(mnt / "file", content)
            txg = int(owner.status(mnt)["chain"]["txg"])
            owner.ok("flush", mnt)
            reader.wait_for(txg + 1)
    for name in ("second", "third"):
        with _mounted(Program(tmp_path / name), place) as mnt:
            assert (mnt / "file").read_bytes() == content
            assert (mnt / "same").read_bytes() == content


def test_missing_pack_does_not_stop_the_compaction_of_other_packs(
    place: Place, program: Program, tmp_path: Path
) -> None:
    """Compaction skips a missing pack, and ``status`` reports this pack."""
    kept = {name: os.urandom(MIB) for name in ("one", "two")}
    packs: list[set[Path]] = []
    with _mounted(program, place) as mnt:
        for name, content in kept.items():
            (mnt / name).write_bytes(content)
            for number in range(5):
                (mnt / f"{name}-{number}").write_bytes(os.urandom(MIB))
            program.ok("flush", mnt)
            packs.append(set(_packs(place)))
        lost, emptied = packs[0], packs[1] - packs[0]
        for path in mnt.glob("*-*"):
            path.unlink()
    for path in lost:
        path.unlink()
    other = Program(tmp_path / "other")
    other.ok("mount", "-o", "image_interval=1", place.url, place.mountpoint)
    (place.mountpoint / "news").write_bytes(b"so that an image is due")

    is_reported = is_moved = False
    deadline_s = time.monotonic() + PROCESS_S_MAX
    while not (is_reported and is_moved):
        assert time.monotonic() < deadline_s, "compaction did not continue in time"
        figures = other.status(place.mountpoint)
        assert figures["image"]["last_error"] == ""
        error = figures["compaction"]["last_error"]
        is_reported = is_reported or any(path.name in error for path in lost)
        large = [path for path in _packs(place) if path.stat().st_size >= MIB]
        is_moved = len(large) > len(emptied)  # Old packs stay until their retention ends.
    other.ok("umount", place.mountpoint)

    for path in emptied:
        path.unlink()
    with _mounted(Program(tmp_path / "third"), place) as mnt:
        assert (mnt / "two").read_bytes() == kept["two"]
        _require_lost(mnt / "one")


def test_fsck_repairs_exchanged_packs_from_the_cache(
    place: Place, program: Program, tmp_path: Path
) -> None:
    """If two packs were exchanged, fsck -y makes their content readable from cached blocks."""
    contents = {"one": os.urandom(MIB), "two": os.urandom(3 * MIB)}
    with _mounted(program, place) as mnt:
        for name, content in contents.items():
            (mnt / name).write_bytes(content)
            program.ok("flush", mnt)
    first, second = (path for path in (place.bucket / "pack").rglob("*") if path.is_file())
    stored = first.read_bytes(), second.read_bytes()
    first.write_bytes(stored[1])
    second.write_bytes(stored[0])

    done = program.run("fsck", "-y", place.url)
    assert done.returncode == EXIT_CORRECTED, done.stdout + done.stderr
    assert "another object, or truncated" in done.stdout

    assert (first.read_bytes(), second.read_bytes()) == (stored[1], stored[0])
    program.ok("fsck", "-n", place.url)
    with _mounted(Program(tmp_path / "other"), place) as mnt:
        for name, content in contents.items():
            assert (mnt / name).read_bytes() == content


def test_host_with_cached_content_replaces_the_holes_that_fsck_made_for_lost_blocks(
    place: Place, program: Program, tmp_path: Path
) -> None:
    """If fsck -y replaced lost blocks with holes, a host with these blocks cached restores them."""
    content = os.urandom(3 * MIB + 5000)
    with _mounted(program, place) as mnt:
        (mnt / "file").write_bytes(content)
    for pack in _packs(place):
        _delete(pack)
    other = Program(tmp_path / "other")
    assert other.run("fsck", "-y", place.url).returncode == EXIT_CORRECTED
    with _mounted(other, place) as mnt:
        assert (mnt / "file").read_bytes() == bytes(len(content))
        assert os.listxattr(mnt / "file") == ["user.s3fs-meta.lost"]

    done = program.run("mount", place.url, place.mountpoint)
    assert "4 blocks of 1 file that fsck had replaced with holes" in done.stderr
    assert (place.mountpoint / "file").read_bytes() == content
    assert os.listxattr(place.mountpoint / "file") == []
    program.ok("umount", place.mountpoint)

    with _mounted(Program(tmp_path / "third"), place) as mnt:
        assert (mnt / "file").read_bytes() == content
