"""Tests of rows with invalid values, which cause EIO only for their own files."""

import errno
import itertools
import os
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Final

import pyfuse3
import pytest

from s3fs_meta.errors import BadRowError, DamagedDatabaseError
from s3fs_meta.fuse.error_boundary import failed
from s3fs_meta.fuse.frequent_requests import READ
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag
from s3fs_meta.mount_state import MountState
from tests.fuse.conftest import (
    CONTEXT,
    Handlers,
    ask,
    forget,
    list_page,
    make_file,
    open_file,
    set_attribute,
)

pytestmark = pytest.mark.thorough

# Replaces pyfuse3.SetattrFields, which only pyfuse3 can fill in.
_SIZE_ONLY: Final = SimpleNamespace(
    update_mode=False,
    update_uid=False,
    update_gid=False,
    update_size=True,
    update_atime=False,
    update_mtime=False,
    update_ctime=False,
)
_PUNCH: Final = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of fallocate(2)
VALUES: Final = ("x'ff00'", "'text'", "CAST(x'ff00' AS TEXT)", "1.5")
_HUGE: Final = "9223372036854775807"
# Values from which a change would compute a number that SQLite cannot store.
_OUT_OF_RANGE: Final = (
    ("mapped_blocks", "9223372036854775807"),
    ("ctime_ns", "-9223372036854775808"),
)
INODE_COLUMNS: Final = (
    *("mode", "nlink", "uid", "gid", "size_bytes", "mapped_blocks", "ctime_ns", "mtime_delta_ns"),
    *("atime_delta_ns", "rdev", "parent", "flags", "btime_delta_ns"),
)
OTHER_COLUMNS: Final = (
    *(("dentries", column) for column in ("name", "ino")),
    ("symlinks", "target"),
    *(("xattrs", column) for column in ("name", "value")),
    ("block_map", "block"),
    *(("blocks", column) for column in ("plain_bytes", "hash", "pack", "pack_offset")),
    ("blocks", "stored_bytes"),
)
WHERE: Final = {"dentries": "name IN (x'626164', x'6c696e6b')", "blocks": "1"}


async def make_entries(handlers: Handlers) -> tuple[Ino, Ino, Ino]:
    """Create a file with content and an extended attribute, a symlink, and another file."""
    bad, good = await make_file(handlers, b"bad"), await make_file(handlers, b"good")
    operations = handlers.operations
    assert set_attribute(handlers, bad, b"user.a", b"value") == 0
    await operations.write(bad, 0, b"content")
    link = await operations.symlink(ROOT_INO, b"link", b"target", CONTEXT)
    handlers.fs.db.commit()
    return bad, good, Ino(link.st_ino)


def spoil(handlers: Handlers, table: str, column: str, value: str, inos: tuple[Ino, Ino]) -> None:
    """Write a value with a wrong type into the rows of a file and a symlink."""
    db = handlers.fs.db
    where = WHERE.get(table, f"ino IN {inos}")
    db.begin()
    db.inodes.run(f"UPDATE {table} SET {column} = {value} WHERE {where}")
    db.commit()
    db.recent().clear()


async def answer(work: Callable[[], Awaitable[object] | int]) -> int:
    """Return the errno of a request, or 0 for success."""
    try:
        result = work()
        if isinstance(result, int):
            return result
        await result
    except pyfuse3.FUSEError as exc:
        return int(exc.errno)
    except (
        BadRowError,
        DamagedDatabaseError,
    ):  # The FUSE extension answers some requests without the Python handlers.
        return errno.EIO
    return 0


Requests = list[Callable[[], Awaitable[object] | int]]


def reads(handlers: Handlers, bad: Ino, link: Ino) -> Requests:
    """Return requests that read the damaged inodes."""
    operations = handlers.operations

    async def content() -> None:
        if open_file(handlers, bad, os.O_RDONLY) == 0:
            try:
                await operations.read(bad, 0, 100)
            finally:
                ask(handlers, "release", bad)

    return [
        lambda: ask(handlers, "lookup", ROOT_INO, b"bad\0")[0],
        lambda: ask(handlers, "lookup", ROOT_INO, b"link\0")[0],
        lambda: ask(handlers, "getattr", bad)[0],
        lambda: ask(handlers, "readlink", link)[0],
        lambda: operations.getxattr(bad, b"user.a", CONTEXT),
        lambda: operations.listxattr(bad, CONTEXT),
        content,
    ]


def empty(handlers: Handlers, ino: Ino) -> Awaitable[object]:
    """Set the size to 0, as the kernel requests for open(2) with O_TRUNC."""
    wanted = pyfuse3.EntryAttributes()
    wanted.st_size = 0
    return handlers.operations.setattr(ino, wanted, _SIZE_ONLY, None, CONTEXT)


def forget_all(handlers: Handlers, ino: Ino) -> int:
    """Set the lookup count of an inode to 0; return 0, because the request has no reply."""
    forget(handlers, ino, handlers.fs.lookups.count(ino))
    return 0


def changes(handlers: Handlers, bad: Ino) -> Requests:
    """Return requests that change the damaged inodes."""
    operations = handlers.operations

    async def write() -> None:
        if open_file(handlers, bad, os.O_RDWR) == 0:
            try:
                await operations.write(bad, 3, b"more")
            finally:
                ask(handlers, "release", bad)

    return [
        write,
        lambda: handlers.fs.ranges.allocate(bad, _PUNCH, 0, 4096),
        lambda: empty(handlers, bad),
        lambda: set_attribute(handlers, bad, b"user.b", b"value"),
        lambda: operations.link(bad, ROOT_INO, b"second", CONTEXT),
        lambda: operations.rename(ROOT_INO, b"bad", ROOT_INO, b"renamed", 0, CONTEXT),
        lambda: operations.unlink(ROOT_INO, b"renamed", CONTEXT),
        lambda: operations.unlink(ROOT_INO, b"bad", CONTEXT),
        lambda: operations.unlink(ROOT_INO, b"link", CONTEXT),
        lambda: forget_all(handlers, bad),
    ]


@pytest.mark.parametrize(
    ("column", "value"), [*itertools.product(INODE_COLUMNS, VALUES), *_OUT_OF_RANGE]
)
async def test_unreadable_inode_row_causes_eio_only_for_requests_of_this_inode(
    handlers: Handlers,
    caplog: pytest.LogCaptureFixture,
    column: str,
    value: str,
) -> None:
    bad, good, link = await make_entries(handlers)
    spoil(handlers, "inodes", column, value, (bad, link))

    codes = [await answer(one) for one in reads(handlers, bad, link)]
    assert set(codes) <= {0, errno.EIO}
    assert codes[2] == errno.EIO
    assert {entry.name for entry in list_page(handlers, ROOT_INO)} >= {b"bad", b"good", b"link"}
    codes = [await answer(one) for one in changes(handlers, bad)]

    assert set(codes) <= {0, errno.EIO, errno.ENOENT}
    assert handlers.operations.status.state is MountState.SERVING
    assert set_attribute(handlers, good, b"user.a", b"") == 0
    assert "raised an unexpected exception" not in caplog.text


@pytest.mark.parametrize("value", [*VALUES, _HUGE, "-1"])
@pytest.mark.parametrize(("table", "column"), OTHER_COLUMNS)
async def test_unreadable_row_of_a_file_causes_eio_only_for_the_file(
    handlers: Handlers,
    caplog: pytest.LogCaptureFixture,
    table: str,
    column: str,
    value: str,
) -> None:
    """A row with a wrong type causes EIO for its file, and the mount keeps serving."""
    bad, good, link = await make_entries(handlers)
    spoil(handlers, table, column, value, (bad, link))

    codes = [await answer(one) for one in reads(handlers, bad, link)]
    assert set(codes) <= {0, errno.EIO, errno.ENOENT, errno.ENODATA}
    assert ask(handlers, "readdir", ROOT_INO, READ.pack(0, 1 << 20))[0] in {0, errno.EIO}
    assert handlers.operations.status.state is MountState.SERVING
    assert set_attribute(handlers, good, b"user.a", b"") == 0
    for one in changes(handlers, bad):
        await answer(one)
        assert handlers.operations.status.state is MountState.SERVING
    assert set_attribute(handlers, good, b"user.a", b"") == 0
    assert "raised an unexpected exception" not in caplog.text


@pytest.mark.parametrize("value", ["1.5", "CAST(x'ff00' AS TEXT)"])
@pytest.mark.parametrize("column", ["refs", "plain_bytes", "hash", "pack", "pack_offset"])
async def test_removed_file_with_unreadable_rows_becomes_an_orphan(
    handlers: Handlers, caplog: pytest.LogCaptureFixture, column: str, value: str
) -> None:
    """A removed file with unreadable rows stays as an orphan until fsck -y."""
    bad, good, _link = await make_entries(handlers)
    spoil(handlers, "blocks", column, value, (bad, bad))
    operations, status = handlers.operations, handlers.operations.status
    forget_all(handlers, bad)

    assert (
        await answer(lambda: operations.rename(ROOT_INO, b"good", ROOT_INO, b"bad", 0, CONTEXT))
        == 0
    )

    assert status.state is MountState.SERVING
    assert "cannot free the space" in caplog.text
    assert ask(handlers, "getattr", good)[0] == 0
    assert inodes.get(handlers.fs.db, bad).nlink == 0


@pytest.mark.parametrize(
    "error", [BadRowError("the row", 3), DamagedDatabaseError("meta.db", "malformed")]
)
async def test_damage_found_during_a_change_degrades_the_mount(
    handlers: Handlers, error: BadRowError | DamagedDatabaseError
) -> None:
    """A change that finds a damaged row or page is rolled back, and the mount is degraded."""
    _bad, good, _link = await make_entries(handlers)
    status = handlers.operations.status
    begun = status.progress
    status.require_writable()
    handlers.fs.db.begin()
    inodes.set_flag(handlers.fs.db, good, InodeFlag.LOCKED, on=True)

    failed(status, "rename", (), error, begun)

    assert status.state is MountState.DEGRADED
    assert not inodes.get(handlers.fs.db, good).flags


@pytest.mark.parametrize("refs", [0, -1, -(2**63)])
@pytest.mark.parametrize("removed", [False, True])
async def test_block_with_reference_count_zero_degrades_the_mount(
    handlers: Handlers, caplog: pytest.LogCaptureFixture, refs: int, removed: bool
) -> None:
    """In an unencrypted filesystem, a forged row is reported as damage.

    The content stays readable.
    """
    bad, good, _link = await make_entries(handlers)
    spoil(handlers, "blocks", "refs", str(refs), (bad, bad))
    operations, status = handlers.operations, handlers.operations.status
    assert bytes(await operations.read(bad, 0, 7)) == b"content"

    if removed:
        forget_all(handlers, bad)
        await answer(lambda: operations.unlink(ROOT_INO, b"bad", CONTEXT))
    else:
        assert await answer(lambda: empty(handlers, bad)) == errno.EIO

    assert status.state is MountState.DEGRADED
    assert f"whose reference count is {refs}; unmount, and run s3fs-meta fsck -y" in status.why
    assert "raised an unexpected exception" not in caplog.text
    assert ask(handlers, "getattr", good)[0] == 0
