"""The image writer, whose images other hosts restore."""

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.changelog import key_of as changelog_key
from s3fs_meta.errors import (
    DatabaseError,
    FormatError,
    LostBlockError,
    NoSpaceLeftError,
    PermanentStoreError,
    ReadOnlyStateError,
)
from s3fs_meta.meta.db import snapshot
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import ObjectKey
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, location_of, read_file, remove_file, unmount, write_file

pytestmark = pytest.mark.thorough

CONTENT = b"hello" * 1000


async def test_flush_of_an_unchanged_filesystem_creates_no_image(power: Power) -> None:
    """A flush without changes writes no object, even after a remount."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        await session.flush()
        before = dict(power.store.objects)

        assert await session.flush() is None

        assert power.store.objects == before
        await session.close()
    async with power.session("a") as session:
        assert await session.flush() is None


async def test_failed_upload_of_an_image_is_tried_again(power: Power) -> None:
    """Changes count as unpublished until an image that contains them is complete."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty) as session:
        ino = write_file(session, CONTENT)
        await session.uploader.sealer.seal_most()
        faulty.fail("replace", PermanentStoreError("no"), times=1)
        with pytest.raises(PermanentStoreError):
            await session.make_image()

        assert await session.make_image() is not None
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_read_only_session_creates_no_image(power: Power) -> None:
    """A read-only session leaves the changes of a killed writer to the next writer."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        session.durability.commit()
    before = dict(power.store.objects)

    async with power.session("a", options=OpenOptions(read_only=True)) as session:
        with pytest.raises(ReadOnlyStateError):
            await session.make_image()
        await session.close()

    assert power.store.objects == before


async def test_image_that_needs_reserved_disk_space_is_postponed(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database copy must not fill the disk, because SQLite would undo the open commit group."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        monkeypatch.setattr(session.cache.disk, "spare_bytes", lambda: 1000)
        with pytest.raises(NoSpaceLeftError):
            await session.make_image()
        monkeypatch.undo()

        assert await session.make_image() is not None
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_degraded_session_ships_nothing(power: Power) -> None:
    """A degraded session may have contradictory rows, which must not reach the bucket."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        before = dict(power.store.objects)
        session.status.degrade("rows contradict each other")

        with pytest.raises(ReadOnlyStateError, match="contradict"):
            await session.make_image()

        assert power.store.objects == before


@pytest.mark.parametrize("damage", ["missing", "rotten", "without a piece"])
async def test_full_image_is_created_if_the_last_image_is_damaged(
    power: Power, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After a damaged image, the next image is complete and uses no piece of earlier images."""
    async with power.session("a") as session:
        first = write_file(session, CONTENT)
        head = await session.make_image()
        assert head is not None
        if damage == "missing":
            del power.store.objects[head.manifest_key]
        elif damage == "without a piece":
            del power.store.objects[ObjectKey(head.manifest_key.replace("manifest", "000000"))]
        else:
            power.store.objects[head.manifest_key] = b"rotten"
        second = write_file(session, CONTENT * 2)

        published = await session.make_image()

        assert published is not None
        data = power.store.objects[published.manifest_key]
        manifest = image_codec.decode(published.manifest_key, data, session.volume.keyring)
        assert manifest.previous is None
        assert "all pieces of the new image are uploaded" in caplog.text
        write_file(session, CONTENT * 3)
        await session.make_image()  # This also runs reclaim, which needs two complete images.
        assert session.reclaimer.last_error == ""
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, first) == CONTENT
        assert await read_file(session, second) == CONTENT * 2


async def test_new_image_is_postponed_while_the_last_image_is_unreachable(power: Power) -> None:
    """If the last image cannot be read, make_image fails instead of uploading all pieces."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty) as session:
        write_file(session, CONTENT)
        await session.make_image()
        write_file(session, CONTENT)
        await session.uploader.sealer.seal_most()
        faulty.fail("get", PermanentStoreError("no"))

        with pytest.raises(PermanentStoreError):
            await session.make_image()


@pytest.mark.parametrize("journal_mode", ["wal", "truncate"])
@pytest.mark.parametrize("step", ["copy", "pieces"])
async def test_failed_image_leaves_no_copy_of_the_database(
    power: Power, monkeypatch: pytest.MonkeyPatch, journal_mode: str, step: str
) -> None:
    """If an image fails, its copy of the database is deleted to free disk space."""
    faulty = FaultyStore(power.store)
    options = OpenOptions(pragmas=Pragmas(journal_mode=journal_mode))
    async with power.session("a", store=faulty, options=options, tasks=False) as session:
        write_file(session, CONTENT)
        await session.make_image()
        session.db.begin()
        if step == "copy":
            copies = snapshot.copy_database

            def fill_the_disk(source: Any, path: Path) -> None:
                copies(source, path)
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(snapshot, "copy_database", fill_the_disk)
            with pytest.raises((DatabaseError, OSError)):
                await session.make_image()
        else:
            faulty.fail("create", PermanentStoreError("no"))
            with pytest.raises(PermanentStoreError):
                await session.make_image()

        state_dir = session.volume.state_dir
        assert list(state_dir.tmp.iterdir()) == []
        assert not list(state_dir.path.glob("*-snapshot"))
        monkeypatch.undo()
        assert await session.make_image() is not None


async def test_next_mount_removes_a_database_copy_left_by_a_crash(power: Power) -> None:
    """A crash may leave an image's copy of the database, which the next mount removes."""
    async with power.session("a", tasks=False) as session:
        path = session.volume.state_dir.path
        (path / "meta.db-snapshot").write_bytes(b"half")
        (path / "tmp" / "image-7.db").write_bytes(b"half")

    async with power.session("a", tasks=False):
        assert not (path / "meta.db-snapshot").exists()
        assert list((path / "tmp").iterdir()) == []


async def test_changelogs_of_earlier_mounts_count_for_the_next_image(power: Power) -> None:
    """The size of changelogs since the last image includes changelogs of earlier mounts."""
    async with power.session("a", tasks=False) as session:
        assert not await session.imager.is_due()
        for number in range(5):
            write_file(session, b"%d" % number)
            await session.flush()
        shipped = session.shipper.since_image.bytes
        assert session.shipper.since_image.has_news
        await session.close()
    listed = sum(
        len(data) for key, data in power.store.objects.items() if key.startswith("changelog/")
    )
    async with power.session("b", tasks=False) as session:
        await session.imager.is_due()
        own = len(power.store.objects[changelog_key(session.volume.link.txg)])
        assert session.shipper.since_image.bytes == listed + own > shipped
        assert session.shipper.since_image.has_news
        write_file(session, b"more")
        await session.flush()
        await session.imager.is_due()
        assert session.shipper.since_image.bytes == sum(
            len(data) for key, data in power.store.objects.items() if key.startswith("changelog/")
        )


async def test_image_is_due_when_changelogs_reach_a_quarter_of_the_size_of_the_last_image(
    power: Power,
) -> None:
    """The total size of changelogs is compared with the stored size of the last image."""
    async with power.session("a", tasks=False) as session:
        while not await session.imager.is_due(changelog_bytes_min=0):
            write_file(session, b"x")
            await session.flush()
        [manifest] = [key for key in power.store.objects if key.endswith("/manifest")]
        pieces = sum(
            len(data)
            for key, data in power.store.objects.items()
            if key.startswith("image/") and key != manifest
        )
        assert session.shipper.since_image.bytes > pieces // 4
        assert session.shipper.since_image.bytes < pieces // 2
        await session.make_image()
        assert not await session.imager.is_due(changelog_bytes_min=0)


async def test_garbage_collection_alone_does_not_trigger_an_image(power: Power) -> None:
    """Txgs of garbage collection do not trigger images, or an idle filesystem would make many."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        for number in range(3):
            write_file(session, b"%d" % number)
            await session.make_image()
        await session.reclaimer.run()
        session.imager.last_ns = 0
        assert session.link.txg > 0
        assert not await session.image_is_due()
        write_file(session, b"y")
        await session.flush()
        assert await session.image_is_due()


async def test_pending_deletion_of_packs_triggers_an_image(power: Power) -> None:
    """The next image allows the deletion of packs of removed files, so it is made early."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"large" * 1000)
        await session.make_image()
        remove_file(session, ino)
        await session.flush()
        session.imager.last_ns = images = 0
        while await session.image_is_due():
            await session.make_image()
            session.imager.last_ns = 0
            images += 1
        assert images == 2
        assert not [key for key in power.store.objects if key.startswith("pack/")]


async def test_block_lost_by_another_host_does_not_prevent_new_images(power: Power) -> None:
    """An image contains the row of a block lost by another host, but without a location."""
    async with power.session("a", tasks=False) as session:
        lost, good = write_file(session, b"lost"), write_file(session, b"good")
        session.durability.commit()
        located = location_of(session, lost)
        session.files.remove(located.block)
        with pytest.raises(LostBlockError):
            await session.flush()

    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        await session.make_image()

    async with power.session("c", options=OpenOptions(force_takeover=True)) as session:
        assert await read_file(session, good) == b"good"
        with pytest.raises(LostBlockError):
            await read_file(session, lost)


@pytest.mark.parametrize("clean_ends", [0, 1])
@pytest.mark.parametrize("make", [Session.make_image, Session.publish_as_txg])
async def test_no_image_is_made_from_a_database_damaged_by_an_unclean_shutdown(
    power: Power, make: Callable[[Session], Awaitable[object]], clean_ends: int
) -> None:
    """After an unclean shutdown, the database is checked before an image is made from it.

    Mounts that end cleanly without an image leave the check to the next mount.
    """
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await session.make_image()
        session.db.checkpoint()
        row = session.db.one("SELECT rootpage FROM sqlite_master WHERE name = 'symlinks'")
        assert row is not None
    database = power.home / "a" / "meta.db"
    page_bytes = 4096
    with database.open("r+b") as file:
        file.seek((row[0] - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)

    for _ in range(clean_ends):
        async with power.session("a", tasks=False) as session:
            await unmount(session)
    async with power.session("a", tasks=False) as session:
        assert session.volume.crashed == (clean_ends == 0)
        head = session.volume.keeper.lease.head
        write_file(session, b"later")
        with pytest.raises(FormatError, match=r"meta\.db' is damaged: SQLite's .*fsck -y"):
            await make(session)
        assert session.volume.keeper.lease.head == head
    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        assert await read_file(session, ino) == CONTENT


async def test_intact_database_is_checked_once_after_an_unclean_shutdown(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        await session.make_image()
    async with power.session("a", tasks=False) as session:
        assert local_state.get(session.db, "unchecked") == "1"
        await session.make_image()
        await unmount(session)

    async with power.session("a", tasks=False) as session:
        assert local_state.get(session.db, "unchecked") is None
