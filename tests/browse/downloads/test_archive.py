"""Tests of the entries in the archives that the browse pages offer for download."""

from contextlib import aclosing
from pathlib import Path

import pytest

from s3fs_meta.browse.downloads import archive
from s3fs_meta.browse.downloads.archive import Joined
from s3fs_meta.browse.limits import BROWSE_PIECE_BYTES
from s3fs_meta.errors import MetadataError, PastUnavailableError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO
from tests.browse import points


async def _paths(db: Database) -> list[bytes]:
    top = inodes.get(db, ROOT_INO)
    async with aclosing(archive.entries(points.point_of(db), top, b"top")) as steps:
        return [step.path async for step in steps]


async def test_archive_of_a_directory_that_contains_itself_is_aborted(tmp_path: Path) -> None:
    db = points.made(tmp_path)
    circle = points.add(db, ROOT_INO, b"circle", points.FOLDER)
    dentries.add(db, circle, b"again", circle)
    db.commit()
    with pytest.raises(PastUnavailableError, match="contains itself"):
        await _paths(db)
    db.close()


async def test_archive_omits_names_that_point_outside_its_target_directory(tmp_path: Path) -> None:
    """Names such as ".." exist only in damaged or forged metadata."""
    db = points.made(tmp_path)
    for name in (b"good", b"..", b".", b"../../x", b"/etc/passwd", b"a\0b"):
        points.add(db, ROOT_INO, name)
    db.commit()
    assert await _paths(db) == [b"top", b"top/good"]
    db.close()


async def test_archive_with_an_unreadable_inode_is_aborted(tmp_path: Path) -> None:
    """An archive that omits an unreadable inode would look complete."""
    db = points.made(tmp_path)
    damaged = points.add(db, ROOT_INO, b"damaged")
    db.inodes.run("UPDATE inodes SET uid = 'text' WHERE ino = ?", (damaged,))
    db.commit()
    with pytest.raises(MetadataError, match=f"metadata of inode {damaged} is damaged"):
        await _paths(db)
    db.close()


async def test_small_pieces_of_an_archive_are_sent_as_one_chunk() -> None:
    sent: list[bytes] = []

    async def put(data: bytes) -> None:  # noqa: RUF029 - the caller awaits it
        sent.append(data)

    joined = Joined(put)
    for _ in range(BROWSE_PIECE_BYTES + 1):
        await joined.put(b"x")
    await joined.flush()
    await joined.flush()
    assert list(map(len, sent)) == [BROWSE_PIECE_BYTES, 1]
