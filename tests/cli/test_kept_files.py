"""Copying files out of what was set aside."""

import os
import stat
from contextlib import closing
from pathlib import Path

from s3fs_meta.cli import kept_state
from s3fs_meta.cli.kept_files import Copied, KeptFiles
from s3fs_meta.cli.kept_state import Kept, Names
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.meta import dentries, inodes, local_state, symlinks, xattrs
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.state_dir import StateDir
from tests.sync.conftest import Power, power, write_file

__all__ = ["power"]


def _name(session: Session, ino: Ino, name: bytes, parent: Ino = ROOT_INO) -> Ino:
    dentries.add(session.db, parent, name, ino)
    return ino


def _set_aside(home: Path) -> Kept:
    return Kept(StateDir(home / "a").set_aside("1"), 1)


async def _copy(power: Power, kept: Kept, keyring: Keyring, target: Path) -> list[Copied]:
    os.mkdir(target)
    with closing(kept_state.open_database(kept)) as db:
        files = KeptFiles(db, kept.blocks, power.store, keyring, target)
        inos = kept_state.changed(db, None)
        names = Names(db, set(inos))
        copied = [one for ino in inos if (one := await files.copy(ino, names)) is not None]
        files.finish(names)
    return copied


async def test_file_comes_out_as_it_was(power: Power, tmp_path: Path) -> None:
    """Content that was never uploaded, names, links, mode, times, attributes, symbolic links."""
    async with power.session("a", tasks=False) as session:
        session.db.begin()
        folder = inodes.create(session.db, 0o40750, 0, 0, ROOT_INO, 5 * 10**9, nlink=2).ino
        _name(session, folder, b"folder")
        file = _name(session, write_file(session, b"not uploaded"), b"file", folder)
        _name(session, file, b"link")
        inodes.set_times(session.db, file, ctime_ns=1, mtime_ns=10**18 + 7, atime_ns=2)
        xattrs.set(session.db, file, b"user.colour", b"blue")
        empty = inodes.create(session.db, 0o40711, 0, 0, folder, 6 * 10**9, nlink=2).ino
        _name(session, empty, b"empty", folder)
        pointer = inodes.create(session.db, 0o120777, 0, 0, ROOT_INO, 0, size_bytes=4).ino
        symlinks.create(session.db, _name(session, pointer, b"pointer"), b"/etc")
        session.db.commit()
        keyring = session.opened.keyring
    target = tmp_path / "out"

    (copied,) = await _copy(power, _set_aside(tmp_path), keyring, target)

    assert (copied.size_bytes, copied.missing) == (12, [])
    assert (target / "folder" / "file").read_bytes() == b"not uploaded"
    assert (target / "folder" / "file").samefile(target / "link")
    assert (target / "link").stat().st_mtime_ns == 10**18 + 7
    assert os.getxattr(target / "link", "user.colour") == b"blue"
    assert os.readlink(target / "pointer") == "/etc"
    assert stat.S_IMODE((target / "folder").stat().st_mode) == 0o750
    assert (target / "folder").stat().st_mtime_ns == 5 * 10**9
    assert stat.S_IMODE((target / "folder" / "empty").stat().st_mode) == 0o711
    assert (target / "folder" / "empty").stat().st_mtime_ns == 6 * 10**9


async def test_content_that_was_evicted_comes_from_the_bucket(power: Power, tmp_path: Path) -> None:
    """From a pack that no image names; a damaged local copy is not believed either."""
    async with power.session("a") as session:
        gone = _name(session, write_file(session, b"evicted" * 1000), b"gone")
        rotten = _name(session, write_file(session, b"rotten" * 1000), b"rotten")
        await session.flush()
        keyring = session.opened.keyring
    kept = _set_aside(tmp_path)
    for path in kept.blocks.rglob("*"):
        if path.is_file() and path.read_bytes().startswith(b"evicted"):
            path.unlink()
        elif path.is_file():
            path.write_bytes(b"x" * 6000)

    copied = await _copy(power, kept, keyring, tmp_path / "out")

    assert [one.missing for one in copied] == [[], []]
    assert (tmp_path / "out" / "gone").read_bytes() == b"evicted" * 1000
    assert (tmp_path / "out" / "rotten").read_bytes() == b"rotten" * 1000
    assert gone != rotten


async def test_content_that_was_not_synced_before_power_was_lost_is_unsure(
    power: Power, tmp_path: Path
) -> None:
    """It is copied, for it may be right, and it is said."""
    async with power.session("a", tasks=False) as session:
        _name(session, write_file(session, b"synced"), b"synced")
        await session.durability.sync_all()
        _name(session, write_file(session, b"young"), b"young")
        local_state.put(session.db, "boot_id", "another")
        session.db.commit()
        keyring = session.opened.keyring

    copied = await _copy(power, _set_aside(tmp_path), keyring, tmp_path / "out")

    assert {one.path: one.unsure for one in copied} == {b"synced": [], b"young": [(0, 4)]}
    assert (tmp_path / "out" / "young").read_bytes() == b"young"


async def test_what_is_nowhere_is_a_hole_and_is_said(power: Power, tmp_path: Path) -> None:
    """A block whose only copy is short, and one whose copy is gone."""
    async with power.session("a", tasks=False) as session:
        _name(session, write_file(session, b"short" * 100), b"short")
        _name(session, write_file(session, b"gone!" * 100), b"gone")
        session.db.commit()
        keyring = session.opened.keyring
    kept = _set_aside(tmp_path)
    for path in kept.blocks.rglob("*"):
        if path.is_file() and path.read_bytes().startswith(b"short"):
            os.truncate(path, 5)
        elif path.is_file():
            path.unlink()

    copied = await _copy(power, kept, keyring, tmp_path / "out")

    assert {one.path: one.missing for one in copied} == {
        b"short": [(5, 499)],
        b"gone": [(0, 499)],
    }
    assert (tmp_path / "out" / "short").read_bytes() == b"short" + bytes(495)
