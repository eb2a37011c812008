"""Mounts of the filesystem at an earlier txg."""

import os
from pathlib import Path

import pytest

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.errors import FormatError, HeldError, MetadataError, SettingsError
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import Txg
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import Volume
from tests.damage import flipped
from tests.sync.conftest import Power, read_file, remove_file, write_file
from tests.sync.history.readers import open_at

pytestmark = pytest.mark.thorough


async def test_mount_of_a_point_in_time_shows_its_files_and_leaves_no_local_state(
    power: Power, tmp_path: Path
) -> None:
    """When a mount of an earlier txg ends, its directory is deleted; the bucket is unchanged."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"first")
        first = await session.flush()
        await session.make_image()
        remove_file(session, ino)
        other = write_file(session, b"second")
        second = await session.flush()
        assert first is not None
        assert second is not None
        objects = dict(power.store.objects)
        for link, there, gone in ((first, ino, other), (second, other, ino)):
            opened = await open_at(power, link.txg, tmp_path / "then")
            past = Session(opened, SessionOptions(), SystemClock())
            past.recover()
            assert opened.link == link
            assert inodes.find(past.db, gone) is None
            assert await read_file(past, there) == (b"first" if there == ino else b"second")
            await close_filesystem(opened, release=False)
            assert not (tmp_path / "then").exists()

    assert power.store.objects == objects


async def test_state_directory_of_a_point_in_time_that_is_in_use_is_refused(
    power: Power, tmp_path: Path
) -> None:
    """Two mounts of one point in time cannot use the same state directory."""
    first = await open_at(power, 0, tmp_path / "then")

    with pytest.raises(HeldError):
        await open_at(power, 0, tmp_path / "then")

    assert first.state_dir.database.exists()
    await close_filesystem(first, release=False)


async def test_refused_mount_of_a_point_in_time_leaves_no_database(
    power: Power, tmp_path: Path
) -> None:
    """A mount of a future txg or of a damaged changelog is refused, and leaves no database."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.flush()
    with pytest.raises(SettingsError, match="txg 9 does not exist yet"):
        await open_at(power, 9, tmp_path / "then")
    key = next(key for key in power.store.objects if key.endswith("changelog/000000000001"))
    power.store.objects[key] = flipped(power.store.objects[key], -1)

    with pytest.raises(FormatError, match="000000000001"):
        await open_at(power, 2, tmp_path / "then")

    assert not (tmp_path / "then" / "meta.db").exists()


async def test_point_in_time_whose_block_size_differs_from_the_superblock_is_refused(
    power: Power, tmp_path: Path
) -> None:
    """The refused database is closed, so that its disk space is freed."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.flush()
        session.db.begin_local()
        session.db.run("UPDATE properties SET value = x'31' WHERE name = 'block_bytes'")
        await session.make_image()
        txg = session.link.txg

    with pytest.raises(MetadataError, match="'block_bytes' differs from the superblock"):
        await open_at(power, txg, tmp_path / "then")

    fds = [Path("/proc/self/fd") / fd for fd in os.listdir("/proc/self/fd")]
    opened = [os.readlink(fd) for fd in fds if fd.is_symlink()]
    assert not [path for path in opened if path.startswith(str(tmp_path / "then"))]
    assert not (tmp_path / "then").exists()


def rows(volume: Volume) -> list[object]:
    """Return the rows of the tables that hosts share."""
    tables = ("inodes", "dentries", "block_map", "blocks", "packs", "totals")
    return [volume.db.all(f"SELECT * FROM {table} ORDER BY 1, 2", ()) for table in tables]


async def test_later_point_in_time_is_built_from_an_earlier_point(
    power: Power, tmp_path: Path
) -> None:
    """A database built from an earlier point in time is identical to a restored database."""
    async with power.session("a", tasks=False) as session:
        first = await some_txgs(session)
        await session.make_image()
        last = await some_txgs(session)
        await session.close()
    restored = await open_at(power, last, tmp_path / "restored")
    expected = rows(restored)
    await close_filesystem(restored, release=False)
    earlier = await open_at(power, first, tmp_path / "earlier")
    for key in [key for key in power.store.objects if key.startswith("image/")]:
        if not key.endswith("/manifest"):
            del power.store.objects[key]

    later = await open_at(power, last, tmp_path / "later", earlier)

    assert rows(later) == expected
    assert later.link.txg == last
    assert earlier.link.txg == first
    for volume in (earlier, later):
        await close_filesystem(volume, release=False)


async def test_later_point_in_time_is_restored_from_an_image_if_a_changelog_is_damaged(
    power: Power, tmp_path: Path
) -> None:
    async with power.session("a", tasks=False) as session:
        first = await some_txgs(session)
        write_file(session, b"damaged")
        damaged = await session.flush()
        await session.make_image()
        last = await some_txgs(session)
        expected = session.db.all("SELECT * FROM inodes ORDER BY ino", ())
        await session.close()
    earlier = await open_at(power, first, tmp_path / "earlier")
    assert damaged is not None
    key = changelog_codec.key_of(damaged.txg)
    power.store.objects[key] = flipped(power.store.objects[key], -1)

    later = await open_at(power, last, tmp_path / "later", earlier)

    assert later.db.all("SELECT * FROM inodes ORDER BY ino", ()) == expected
    for volume in (earlier, later):
        await close_filesystem(volume, release=False)


async def some_txgs(session: Session, count: int = 40) -> Txg:
    """Ship some txgs and create the level objects for complete runs; return the last txg."""
    for number in range(count):
        ino = write_file(session, b"%d" % number)
        if number % 3 == 0:
            remove_file(session, ino)
        await session.shipper.ship(anyway=True)
    await session.leveler.make_due()
    return session.link.txg
