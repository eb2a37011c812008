"""Points in time for tests: databases that contain file names but no file content."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, hard_links, inodes
from s3fs_meta.model import Ino, Txg
from s3fs_meta.mount.http_server import Send
from s3fs_meta.sync.chain.chain import Link

PROPERTIES = {"uuid": b"a-uuid", "block_bytes": b"65536", "cookie_key": bytes(range(16))}
FILE = 0o100644
FOLDER = 0o040755


def made(folder: Path) -> Database:
    """Return the database of an empty filesystem, with an open commit group."""
    pragmas = Pragmas(synchronous="off")
    db = Database.create(folder / "meta.db", pragmas, PROPERTIES, now_ns=10**18)
    db.begin()
    return db


def add(db: Database, parent: Ino, name: bytes, mode: int = FILE, size_bytes: int = 0) -> Ino:
    """Create an entry in a directory and return its inode number."""
    nlink = 2 if mode == FOLDER else 1
    ino = inodes.create(db, mode, 0, 0, parent, 0, nlink=nlink, size_bytes=size_bytes).ino
    dentries.add(db, parent, name, ino)
    return ino


def link(db: Database, parent: Ino, name: bytes, ino: Ino) -> None:
    """Add a hard link to a file."""
    before = inodes.get(db, ino)
    dentries.add(db, parent, name, ino)
    hard_links.link_added(db, before, parent)
    inodes.replace(db, before._replace(nlink=before.nlink + 1))


def point_of(db: Database) -> OpenPoint:
    """Return a database as an open point in time, in which files consist only of holes."""

    async def read(_located: list[Any]) -> list[Any]:
        await trio.lowlevel.checkpoint()
        return []

    volume = SimpleNamespace(link=Link(Txg(7), "", 0))
    return cast(
        "OpenPoint", SimpleNamespace(db=db, volume=volume, reader=SimpleNamespace(read=read))
    )


def into(file: io.BytesIO) -> Send:
    """Return an async function that appends data to a file."""

    async def put(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        file.write(data)

    return put
