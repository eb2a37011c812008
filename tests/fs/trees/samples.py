"""Sample trees, and checks of their copies and removals."""

import random
from collections.abc import Iterator

from s3fs_meta.check.fsck import check_database
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.limits import MIB
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import ROOT_INO, Cookie, Ino
from tests.fs.conftest import (
    BLOCK_BYTES,
    ROOT,
    USER,
    look,
    make_directory,
    make_file,
)
from tests.polling import until
from tests.tasks import running


async def fill(fs: Filesystem, ino: Ino, size_bytes: int) -> bytes:
    """Write random content into a file; return the content."""
    content = random.Random(ino).randbytes(size_bytes)
    for offset in range(0, size_bytes, BLOCK_BYTES):
        await fs.write(ino, offset, content[offset : offset + BLOCK_BYTES])
    return content


async def make_tree(fs: Filesystem, name: bytes = b"tree", *, files: int = 3) -> Ino:
    """Create a tree with subdirectories, files, extended attributes, a symlink and a FIFO."""
    top = make_directory(fs, name)
    below = make_directory(fs, b"below", top)
    make_directory(fs, b"empty", below)
    for number in range(files):
        make_file(fs, b"plain %d" % number, below)
        full = make_file(fs, b"full %d" % number, top)
        await fs.write(full, 0, b"content")
    fs.xattrs.set(look(fs, b"full 0", top).ino, b"user.a", b"1", ROOT)
    fs.xattrs.set(below, b"user.b", b"2", ROOT)
    fs.namespace.make_symlink(below, b"link", b"target", USER)
    fs.namespace.make_node(top, b"pipe", 0o010644, USER)
    return top


async def make_rich_tree(fs: Filesystem) -> Ino:
    """Create the tree of ``make_tree`` with an additional sparse file, hard links and a device."""
    top = await make_tree(fs)
    below = look(fs, b"below", top).ino
    sparse = make_file(fs, b"sparse", below, mode=0o4755)
    await fs.write(sparse, 3 * BLOCK_BYTES, b"end")
    await fs.write(sparse, BLOCK_BYTES, b"middle")
    linked = look(fs, b"full 1", top).ino
    fs.namespace.link(linked, below, b"linked")
    fs.namespace.link(linked, below, b"linked again")
    fs.namespace.make_node(top, b"device", 0o020600, ROOT, rdev=0x0103)
    return top


COPY = CloneTarget(ROOT_INO, b"copy")


async def clone(
    fs: Filesystem, name: bytes = b"tree", target: CloneTarget = COPY
) -> list[TreeProgress]:
    """Copy a tree of the root directory; return the reported progress."""
    reported: list[TreeProgress] = []
    ino = look(fs, name).ino
    await fs.tree_clone.clone(CloneTarget(ROOT_INO, name), ino, target, reported.append)
    return reported


def _names(fs: Filesystem, ino: Ino) -> Iterator[tuple[bytes, Ino]]:
    after = Cookie(0)
    while page := fs.read_directory(ino, after, 100):
        yield from ((name, attributes.ino) for name, _cookie, attributes in page)
        after = page[-1][1]


async def facts(fs: Filesystem, top: Ino) -> dict[bytes, tuple[object, ...]]:
    """Return all properties that a copy must keep, by the first path of each inode."""
    found: dict[bytes, tuple[object, ...]] = {}
    first: dict[Ino, bytes] = {}
    waiting = [(b"", top)]
    while waiting:
        path, ino = waiting.pop()
        row = fs.getattr(ino)
        kind = row.mode & 0o170000
        content: bytes | None = None
        if kind == 0o100000:
            content = await fs.read(ino, 0, 10 * MIB)
        elif kind == 0o120000:
            content = fs.readlink(ino)
        else:
            waiting += sorted((path + b"/" + name, child) for name, child in _names(fs, ino))[::-1]
        xattrs = {name: fs.xattrs.get(ino, name) for name in fs.xattrs.names(ino, ROOT)}
        found[path] = (
            row._replace(ino=Ino(0), parent=Ino(0), ctime_ns=0, btime_ns=0),
            first.setdefault(ino, path),
            content,
            xattrs,
        )
    return found


def assert_sound(fs: Filesystem) -> None:
    """Require that fsck of the mounted database finds no damaged rows."""
    fs.db.commit()
    db = Database.open(fs.db.path, Pragmas(), read_only=True)
    try:
        report = check_database(db, repair=Mode.REPORT, report=Report(), mounted=True)
    finally:
        db.close()
    assert report.lines() == ["clean"]


async def settled(fs: Filesystem) -> None:
    """Wait until every removal of a tree is complete."""
    async with running(fs.run):
        await until(lambda: not len(fs.orphans.trees) and fs.tree_removal.all_forgotten.is_set())


def ignore(_progress: TreeProgress) -> None:
    """Ignore the reported progress of a copy."""
