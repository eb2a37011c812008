"""Tests of cached folder sizes of the most recently viewed points in time."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import trio

from s3fs_meta.browse.limits import BROWSE_SIZES_MAX
from s3fs_meta.browse.sources.sizes import Sizes
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.trees.folder_sizes import FolderSizes
from s3fs_meta.model import ROOT_INO, Txg
from s3fs_meta.sync.chain.chain import Link
from tests.browse import points


def at(db: Database, txg: int) -> OpenPoint:
    """Return a database that represents the open point in time of a txg."""
    volume = SimpleNamespace(link=Link(Txg(txg), "", 0))
    return cast("OpenPoint", SimpleNamespace(db=db, volume=volume))


async def test_folder_sizes_are_cached_for_the_most_recently_viewed_points(tmp_path: Path) -> None:
    db = points.made(tmp_path)
    points.add(db, ROOT_INO, b"one", points.FOLDER)
    db.commit()
    sizes, found = Sizes(), list[FolderSizes]()

    async def look(txg: int) -> None:
        found.append(await sizes.of(at(db, txg)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, 1)
        nursery.start_soon(look, 1)
    assert found[0] is found[1]
    assert len(found[0]) == 2
    for txg in range(2, 2 + BROWSE_SIZES_MAX):
        await look(txg)
    assert await sizes.of(at(db, 1)) is not found[0]
    db.close()
