"""Make ``filesystem.tar.xz``: a bucket and two state directories in schema version 1.

Only a program of schema version 1 may run this script: in a worktree of commit 62ec4ac, run
``python generate.py filesystem.tar.xz``. The tests of ``test_version_1.py`` begin with its output.

    objects/     the bucket: two images, thirteen changelogs, two level objects
    a/           the state directory of a killed writer, with two groups that are in no changelog
    b/           the state directory of a read-only host, last mounted at txg 5
    rows.json    inodes and names: ``shipped`` in the last txg, ``local`` in the state of a/
"""

import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import trio

from s3fs_meta.clock import SystemClock
from s3fs_meta.limits import MIB
from s3fs_meta.meta.db import schema
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import block_map, dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, BlockIndex, Ino
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.sudden_end import kill

T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def make_file(session: Session, parent: Ino, name: bytes, now_ns: int) -> Ino:
    """Make a file that contains its own name, repeated."""
    content = name * 100
    session.db.begin()
    made = inodes.create(session.db, 0o100644, 7, 8, parent, now_ns, size_bytes=len(content))
    block = session.cache.write_new(made.ino, BlockIndex(0), 0, content)
    block_map.set(session.db, made.ino, BlockIndex(0), block)
    inodes.add_mapped_blocks(session.db, made.ino, 1)
    dentries.add(session.db, parent, name, made.ino)
    inodes.change_directory(session.db, parent, now_ns, entries=1)
    return made.ino


def remove_file(session: Session, parent: Ino, name: bytes, now_ns: int) -> None:
    """Remove a file of one block."""
    session.db.begin()
    ino = dentries.remove(session.db, parent, name)
    block = block_map.remove(session.db, ino, BlockIndex(0))
    assert block is not None, "the file has no block"
    session.cache.release(block)
    inodes.delete(session.db, ino)
    inodes.change_directory(session.db, parent, now_ns, entries=-1)


def change_mode(session: Session, ino: Ino, now_ns: int) -> None:
    """Change the mode and the ctime of an inode."""
    session.db.begin()
    before = inodes.get(session.db, ino)
    inodes.replace(session.db, before._replace(mode=before.mode ^ 0o111, ctime_ns=now_ns))


def rows(db: Database) -> dict[str, Any]:
    """Return the rows of inodes and of names."""
    return {
        "inodes": db.all("SELECT * FROM inodes ORDER BY ino"),
        "dentries": [
            (parent, bytes(name).decode(), ino)
            for parent, name, ino in db.all("SELECT parent, name, ino FROM dentries ORDER BY ino")
        ],
    }


async def opened_session(store: MemoryStore, path: Path, options: OpenOptions) -> Session:
    """Open the filesystem on a host, and return the session."""
    opened = await open_filesystem(
        store,
        StateDir(path),
        lambda: b"",  # type: ignore[arg-type] # The version 1 program expects this type.
        SystemClock(),
        options,
    )
    session = Session(opened, SessionOptions(cache_bytes=256 * MIB), SystemClock())
    session.recover()
    session.start()
    return session


async def read_only_host(store: MemoryStore, path: Path) -> None:
    """Apply all txgs on a read-only host, and close the filesystem."""
    session = await opened_session(store, path, OpenOptions(read_only=True))
    await close_filesystem(session.volume, release=False)


async def ship_changes(session: Session, store: MemoryStore, home: Path) -> None:
    """Ship changes in several txgs, with one mount of the read-only host in between."""
    session.db.begin()
    folder = inodes.create(session.db, 0o040755, 1, 2, ROOT_INO, T0, nlink=2).ino
    dentries.add(session.db, ROOT_INO, b"folder", folder)
    inodes.change_directory(session.db, ROOT_INO, T0, entries=1, subdirectories=1)
    one = make_file(session, folder, b"one", T0 + SECOND)
    make_file(session, folder, b"two", T0 + 2 * SECOND)
    await session.flush()
    await session.make_image()
    change_mode(session, one, T0 + 3 * SECOND)
    xattrs.set(session.db, one, b"user.note", b"kept")
    await session.flush()
    remove_file(session, folder, b"two", T0 + 4 * SECOND)
    three = make_file(session, folder, b"three", T0 + 4 * SECOND)
    await session.flush()
    await read_only_host(store, home / "b")
    for step in range(5, 13):
        change_mode(session, three, T0 + step * SECOND)
        inodes.touch(session.db, three, mtime_ns=-step)
        await session.flush()
    await session.leveler.make_due()


async def change_without_upload(session: Session) -> None:
    """Commit two groups without shipping them."""
    folder = dentries.find(session.db, ROOT_INO, b"folder")
    assert folder is not None, "the directory was not made"
    one = dentries.find(session.db, folder, b"one")
    assert one is not None, "the file was not made"
    change_mode(session, one, T0 + 20 * SECOND)
    make_file(session, folder, b"four", T0 + 20 * SECOND)
    session.db.commit()
    remove_file(session, folder, b"three", T0 + 21 * SECOND)
    change_mode(session, folder, T0 + 21 * SECOND)
    session.db.commit()
    await session.durability.sync()


async def generate(home: Path) -> dict[str, Any]:
    """Create the bucket and the state directories below a directory; return the rows."""
    store = MemoryStore()
    wanted = NewFilesystem(label="version 1", block_bytes=1 * MIB, page_size=4096, passphrase=None)
    await make_filesystem(store, wanted, home, SystemClock())
    session = await opened_session(store, home / "a", OpenOptions())
    await ship_changes(session, store, home)
    shipped = rows(session.db)
    await change_without_upload(session)
    local = rows(session.db)
    kill(session.volume)
    for key, data in store.objects.items():
        path = home / "objects" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {"shipped": shipped, "local": local}


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and time from an archive entry."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main(target: Path) -> None:
    """Write the archive to the path that is given as an argument."""
    version: int = schema.SCHEMA_VERSION
    assert version == 1, "only a program of schema version 1 can make this archive"
    with (
        tempfile.TemporaryDirectory() as scratch,
        mock.patch("socket.gethostname", return_value="example"),
    ):
        home = Path(scratch)
        made = json.dumps(trio.run(generate, home), indent=1).encode()
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for name in ("objects", "a", "b"):
                archive.add(home / name, name, filter=anonymous)
            entry = tarfile.TarInfo("rows.json")
            entry.size = len(made)
            archive.addfile(entry, io.BytesIO(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
