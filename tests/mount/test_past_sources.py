"""Tests of finding the past tree that a clone request refers to."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from s3fs_meta.control.plain_call import no_report
from s3fs_meta.errors import NoInodeError, SettingsError, UsageError
from s3fs_meta.fs.past.past_tree import PAST_TOP_INO, PastTree
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, Attributes, Ino, PointInTime, Txg
from s3fs_meta.mount.past_sources import PastSources
from tests.fs.conftest import Volume, look, make_directory, make_file
from tests.fs.past.copying import Copier

Found = tuple[Txg, Attributes]


class Sources:
    """The clone sources of one mount."""

    def __init__(self, volume: Volume, copier: Copier) -> None:
        session = volume.session
        self.copier = copier
        self.tree = PastTree(
            copier.points,
            b".snapshots",
            65536,
            lambda: inodes.get(session.db, ROOT_INO),
            session.volume.clock.now_ns,
        )
        self.sources = PastSources(session, copier.points, self.tree, copier.clone)

    async def find(self, **source: Any) -> Found:
        """Return the txg and the inode of a source."""
        txg, find = await self.sources.find(source, no_report)
        async with self.copier.points.used(txg) as point:
            return txg, find(point.db)


@asynccontextmanager
async def shipped(volume: Volume) -> AsyncIterator[tuple[Sources, Txg, Ino]]:
    """Upload a file, then remove it and upload again; yield the sources, the txg and the inode."""
    async with volume.mounted() as fs:
        directory = make_directory(fs, b"d")
        ino = make_file(fs, b"f", directory)
        await volume.upload()
        txg = volume.session.link.txg
        fs.namespace.unlink(directory, b"f")
        await volume.upload()
        yield Sources(volume, Copier(fs, volume.session)), txg, ino


@pytest.fixture
async def volume(tmp_path: Any) -> Volume:
    """Return a new filesystem."""
    made = Volume(tmp_path)
    await made.make()
    return made


async def test_source_of_a_clone_can_be_a_past_path_or_inode(volume: Volume) -> None:
    async with shipped(volume) as (sources, txg, ino):
        at = PointInTime(f"txg={txg}", txg=txg)._asdict()
        names = ["d", "f"]
        assert (await sources.find(top=ROOT_INO, names=names, at=at))[1].ino == ino
        point = await sources.tree.lookup(PAST_TOP_INO, b"txg=%d" % txg)
        assert point is not None
        directory = await sources.tree.lookup(point.ino, b"d")
        assert directory is not None
        file = await sources.tree.lookup(directory.ino, b"f")
        assert file is not None
        found, attributes = await sources.find(ino=file.ino)
        assert (found, attributes.ino) == (txg, ino)
        top, attributes = await sources.find(top=ROOT_INO, names=[], at=at)
        assert (top, attributes.ino) == (txg, ROOT_INO)


async def test_clone_of_the_current_state_first_uploads_all_changes(volume: Volume) -> None:
    async with volume.mounted() as fs:
        sources = Sources(volume, Copier(fs, volume.session))
        made = make_file(fs, b"new")
        before = volume.session.link.txg
        txg, attributes = await sources.find(top=ROOT_INO, names=["new"], at=None)
        assert txg > before
        assert attributes.ino == made == look(fs, b"new").ino
        again, _ = await sources.find(top=ROOT_INO, names=["new"], at=None)
        assert again == txg


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"top": "1", "names": [], "at": None},
        {"top": 1, "names": "d", "at": None},
        {"top": 1, "names": [], "at": {"when": 1}},
    ],
)
async def test_malformed_clone_source_is_refused(volume: Volume, source: dict[str, Any]) -> None:
    async with shipped(volume) as (sources, _txg, _ino):
        with pytest.raises(UsageError):
            await sources.find(**source)


@pytest.mark.parametrize(
    "at",
    [
        {"text": "txg=999", "txg": 999},
        {"text": "1970-01-01", "time_ns": 1},
        {"text": "3000-01-01", "time_ns": 1 << 62},
    ],
)
async def test_clone_from_a_missing_point_in_time_is_refused(
    volume: Volume, at: dict[str, Any]
) -> None:
    async with shipped(volume) as (sources, _txg, _ino):
        with pytest.raises(SettingsError, match="not retained"):
            await sources.find(top=1, names=[], at=at)


async def test_clone_of_a_path_that_is_missing_in_the_past_is_refused(volume: Volume) -> None:
    async with shipped(volume) as (sources, txg, _ino):
        at = PointInTime(f"txg={txg}", txg=txg)._asdict()
        for names in (["d", "g"], ["d", "f", "g"], [os.fsdecode(b"\xff")]):
            with pytest.raises(UsageError, match="did not exist"):
                await sources.find(top=ROOT_INO, names=names, at=at)
        with pytest.raises(UsageError, match="did not exist"):
            await sources.find(top=12345, names=["d"], at=at)
        with pytest.raises(NoInodeError):
            await sources.find(ino=PAST_INO_MIN + 12345)
