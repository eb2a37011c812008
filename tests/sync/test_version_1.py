"""A filesystem of schema version 1: a bucket and two local states.

``version_1/generate.py`` describes its content. No row may be lost, and every upgrade path to the
current schema must produce the same rows, including the birth times.
"""

import json
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.check.fsck import check_database
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.codec import level as level_codec
from s3fs_meta.export import quarantine_list
from s3fs_meta.export.quarantine_list import Kept
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, Attributes, Ino, ObjectKey, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.rows import contents_at, require_equal
from tests.sync.conftest import TAKEOVER, HandClock, Power, read_file, remove_file, ship
from tests.sync.follower.following import following
from tests.sync.history.readers import bucket_of, concerning, open_at
from tests.sync.rolling_back import roll_back

pytestmark = pytest.mark.thorough

ARCHIVE = Path(__file__).with_name("version_1") / "filesystem.tar.xz"
LATER = 1_800_000_000_000_000_000
COLUMNS = 13
IMAGE_TXG, B_TXG, LAST_TXG = 3, 5, 13


class Former(Power):
    """A bucket and two hosts' local states that a program of schema version 1 wrote."""

    def __init__(self, home: Path) -> None:
        super().__init__(MemoryStore(), home)
        # A fixed time long after version 1, so that tests do not depend on the current time.
        self.clock = HandClock()
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(home, filter="data")
        objects = home / "objects"
        for path in objects.rglob("*"):
            if path.is_file():
                key = ObjectKey(str(path.relative_to(objects)))
                self.store.objects[key] = path.read_bytes()
        self.rows: dict[str, Any] = json.loads((home / "rows.json").read_bytes())

    def require(self, db: Database, which: str) -> None:
        """Require the rows of schema version 1, without birth times, and no findings of fsck."""
        db.commit()
        expected = self.rows[which]
        found = db.inodes.all("SELECT * FROM inodes ORDER BY ino")
        assert [list(row[:COLUMNS]) for row in found] == expected["inodes"]
        assert [row[COLUMNS:] for row in found] == [(0,)] * len(found)
        names = db.all("SELECT parent, name, ino FROM dentries ORDER BY ino")
        assert [[one, name.decode(), ino] for one, name, ino in names] == expected["dentries"]
        with closing(Database.open(db.path, Pragmas(), read_only=True)) as beside:
            report = check_database(beside, repair=Mode.REPORT, report=Report(), mounted=True)
        assert report.lines() == ["clean"]


@pytest.fixture
def former(tmp_path: Path) -> Former:
    """Return an unpacked filesystem of schema version 1."""
    return Former(tmp_path)


def named(db: Database) -> dict[bytes, Ino]:
    """Return the inodes of the directory "folder" and its entries, by name."""
    folder = dentries.find(db, ROOT_INO, b"folder")
    assert folder is not None
    files = {name: dentries.find(db, folder, name) for name in (b"one", b"three", b"four")}
    return {b"folder": folder, **{name: ino for name, ino in files.items() if ino is not None}}


def change_all(session: Session, now_ns: int) -> dict[Ino, int]:
    """Change the ctime of the directory and its files; return the birth times to expect."""
    db = session.db
    db.begin()
    born = {ino: inodes.get(db, ino).btime_ns for ino in named(db).values()}
    for ino in born:
        inodes.touch(db, ino, ctime_ns=now_ns)
    return born


def births(db: Database) -> dict[Ino, int]:
    """Return the birth times of the directory and its files."""
    return {ino: inodes.get(db, ino).btime_ns for ino in named(db).values()}


async def restored(power: Power, target: Path, *, by_levels: bool = True) -> dict[str, Any]:
    """Restore the filesystem on a new host and return the rows."""
    bucket = await bucket_of(power)
    if not by_levels:
        for key in [key for key in power.store.objects if key.startswith("level/")]:
            del power.store.objects[key]
    restorer = Restorer(power.store, bucket.keyring, bucket.uuid, no_progress)
    await restorer.restore(None, target)
    assert restorer.notices == []
    return contents_at(target)


# --- buckets of schema version 1 ---------------------------------------------------------------


async def test_new_host_restores_a_bucket_of_schema_version_1(former: Former) -> None:
    """A new host applies the image, level object and changelogs of schema version 1."""
    async with former.session("c", options=TAKEOVER, tasks=False) as session:
        former.require(session.db, "shipped")
        one = named(session.db)[b"one"]
        assert await read_file(session, one) == b"one" * 100
        assert xattrs.get(session.db, one, b"user.note") == b"kept"


async def test_merged_changelogs_of_both_schema_versions_give_equal_rows(
    former: Former, tmp_path: Path
) -> None:
    """Changelogs and merged level objects produce the same rows across schema versions."""
    async with former.session("c", options=TAKEOVER, tasks=False) as session:
        born = change_all(session, LATER)
        txg = await ship(session)
        while txg < 25:
            change_all(session, LATER + txg)
            txg = await ship(session)
        await session.leveler.make_due()
        assert births(session.db) == born
        levels = [key for key in former.store.objects if key.startswith("level/")]
        # The five merged level objects have changes of schema versions 1 and 2.
        assert level_codec.key_of(2, Txg(25)) in levels
    merged = await restored(former, tmp_path / "merged.db")
    single = await restored(former, tmp_path / "single.db", by_levels=False)
    require_equal(merged, single)

    with closing(Database.open(tmp_path / "merged.db", Pragmas(), read_only=True)) as db:
        assert births(db) == born
        assert {inodes.get(db, ino).ctime_ns for ino in born} == {LATER + 24}


async def test_image_of_schema_version_2_contains_birth_times(
    former: Former, tmp_path: Path
) -> None:
    """An image of schema version 2 is restored without earlier changelogs."""
    async with former.session("c", options=TAKEOVER, tasks=False) as session:
        born = change_all(session, LATER)
        await ship(session)
        await session.make_image()
    for key in list(former.store.objects):
        if key.startswith(("level/", f"image/{IMAGE_TXG:012d}", "image/000000000000")):
            del former.store.objects[key]
    await restored(former, tmp_path / "db")

    with closing(Database.open(tmp_path / "db", Pragmas(), read_only=True)) as db:
        assert births(db) == born


async def test_points_in_time_of_schema_version_1_can_be_restored(
    former: Former, tmp_path: Path
) -> None:
    """Txgs of schema version 1 can be mounted, and a rollback to such a txg works."""
    async with former.session("c", options=TAKEOVER, tasks=False) as session:
        change_all(session, LATER)
        await ship(session)
    bucket = await bucket_of(former)
    concerned = await concerning(bucket, tmp_path, b"folder/three")
    assert concerned == [LAST_TXG + 2, *range(LAST_TXG, B_TXG - 1, -1)]
    opened = await open_at(former, LAST_TXG, tmp_path / "then")
    former.require(opened.db, "shipped")
    past = opened.link
    await close_filesystem(opened, release=False)

    await roll_back(former, past, "c")

    for host in ("c", "d"):
        async with former.session(host, options=TAKEOVER, tasks=False) as session:
            former.require(session.db, "shipped")


# --- local states of schema version 1 ----------------------------------------------------------


async def test_unshipped_changes_of_schema_version_1_are_merged_with_later_changes(
    former: Former, tmp_path: Path
) -> None:
    """Unshipped changes of a killed version 1 mount are shipped with later changes."""
    async with former.session("a", tasks=False) as session:
        assert session.volume.crashed
        former.require(session.db, "local")
        four = named(session.db)[b"four"]
        assert await read_file(session, four) == b"four" * 100
        born = change_all(session, LATER)
        await ship(session)
        assert births(session.db) == born
    here = contents_at(tmp_path / "a" / "meta.db")

    there = await restored(former, tmp_path / "db")

    for table in ("inodes", "dentries", "xattrs", "block_map", "properties"):
        assert there[table] == here[table]


async def test_unshipped_changes_of_schema_version_1_are_shipped_even_without_later_changes(
    former: Former, tmp_path: Path
) -> None:
    async with former.session("a", tasks=False) as session:
        await ship(session)
    await restored(former, tmp_path / "db")

    with closing(Database.open(tmp_path / "db", Pragmas(), read_only=True)) as db:
        former.require(db, "local")


async def test_follower_with_local_state_of_schema_version_1_continues(former: Former) -> None:
    """A follower with version 1 state applies changelogs of versions 1 and 2."""
    async with following(former, "b") as (session, listener):
        former.require(session.db, "shipped")
        async with former.session("a") as writer:
            born = change_all(writer, LATER)
            await listener.wait_for(await ship(writer))
            assert births(session.db) == born
            assert inodes.get(session.db, ROOT_INO) == inodes.get(writer.db, ROOT_INO)
            change_all(writer, LATER + 1)
            await listener.wait_for(await ship(writer))
            assert births(session.db) == born


async def test_removal_of_a_row_of_schema_version_1_reaches_followers_and_new_hosts(
    former: Former, tmp_path: Path
) -> None:
    """The row of a removed file was recorded with fewer columns than the table has."""
    async with following(former, "b") as (session, listener):
        async with former.session("a") as writer:
            await listener.wait_for(await ship(writer))
            writer.db.begin()
            folder = named(writer.db)[b"folder"]
            ino = dentries.remove(writer.db, folder, b"one")
            xattrs.remove(writer.db, ino, b"user.note")
            remove_file(writer, ino)
            await listener.wait_for(await ship(writer))
        assert set(named(session.db)) == {b"folder", b"four"}
    await restored(former, tmp_path / "db")

    with closing(Database.open(tmp_path / "db", Pragmas(), read_only=True)) as db:
        assert inodes.find(db, ino) is None


@pytest.mark.parametrize("host", ["b", "c"])
async def test_read_only_mount_can_read_schema_version_1(former: Former, host: str) -> None:
    """Host b has local state of schema version 1, and host c has no local state."""
    async with former.session(host, options=OpenOptions(read_only=True), tasks=False) as session:
        former.require(session.db, "shipped")


def test_reading_a_quarantined_state_of_schema_version_1_does_not_change_the_state(
    former: Former,
) -> None:
    """Recovering changes from a quarantined state does not upgrade its database."""
    kept = Kept(former.home / "a", 1)
    before = kept.database.read_bytes()
    with (
        closing(quarantine_list.open_database(kept)) as db,
        closing(Database.open(former.home / "b" / "meta.db", Pragmas())) as base,
    ):
        names = named(db)
        found: list[Attributes] = [inodes.get(db, ino) for ino in names.values()]
        assert [one.btime_ns for one in found] == [one.ctime_ns for one in found]
        assert quarantine_list.changed(db, base) == sorted({names[b"one"], names[b"four"]})

    assert kept.database.read_bytes() == before
