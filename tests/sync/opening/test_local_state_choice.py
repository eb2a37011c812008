"""The choice between local state and a bucket with a different history."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typing_extensions import override

from s3fs_meta.bucket_errors import BrokenChainError, OlderBucketError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.console.boundary import text_of
from s3fs_meta.errors import DatabaseFullError, FormatError, StoreUnavailableError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import inodes, local_state, xattrs
from s3fs_meta.model import ROOT_INO, BlockId, Ino, ObjectKey
from s3fs_meta.objects.contract import Fetched
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain.replay import Replayer
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import close_filesystem
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.upload.cut import Cut
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import (
    REGULAR,
    TAKEOVER,
    Power,
    failing_append,
    read_file,
    remove_file,
    unmount,
    write_file,
)

pytestmark = pytest.mark.thorough


async def two_rounds(power: Power) -> dict[str, bytes]:
    """Ship two changes from host a; return the bucket's content after the first change."""
    async with power.session("a") as session:
        write_file(session, b"one")
        await session.flush()
        before = dict(power.store.objects)
        write_file(session, b"two")
        await unmount(session)
    return {str(key): data for key, data in before.items()}


async def test_older_copy_of_the_bucket_is_refused(power: Power) -> None:
    """A host refuses a bucket that is older than the txg which the host remembers."""
    before = await two_rounds(power)
    power.store.objects.clear()
    power.store.objects.update(before)  # type: ignore[arg-type]

    with pytest.raises(OlderBucketError, match="not in the state that this host saw last"):
        async with power.session("a"):
            pass

    assert (power.home / "a" / "meta.db").exists()
    assert not list((power.home / "a").glob("kept-*"))


@pytest.mark.parametrize("size", [0, 4096 * 3 + 7])
async def test_truncated_local_database_is_refused_with_advice(power: Power, size: int) -> None:
    """The error about a truncated database advises fsck -y; no file is moved."""
    await two_rounds(power)
    os.truncate(power.home / "a" / "meta.db", size)

    with pytest.raises(FormatError, match="fsck -y quarantines it and continues from the bucket"):
        async with power.session("a"):
            pass

    assert (power.home / "a" / "meta.db").stat().st_size == size
    assert not list((power.home / "a").glob("kept-*"))


@pytest.mark.parametrize("table", ["cached_blocks", "properties", "local_state"])
async def test_damaged_rows_of_the_local_database_are_refused_with_advice(
    power: Power, table: str
) -> None:
    """The local database can be opened, but a later read finds damaged rows.

    The database is then closed. fsck -y moves its files, and SQLite must not remove the write-ahead
    log of a later database at the same path.
    """
    await two_rounds(power)
    path = power.home / "a" / "meta.db"
    db = Database.open(path, Pragmas())
    row = db.one("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    page_bytes = db.one("PRAGMA page_size")
    db.close()
    assert row is not None
    assert page_bytes is not None
    with path.open("r+b") as file:
        file.seek((row[0] - 1) * page_bytes[0])
        file.write(b"\xff" * page_bytes[0])

    with pytest.raises(FormatError, match="fsck -y quarantines it and continues from the bucket"):
        async with power.session("a"):
            pass
    fds = [Path("/proc/self/fd") / fd for fd in os.listdir("/proc/self/fd")]
    opened = [os.readlink(fd) for fd in fds if fd.is_symlink()]
    assert not [one for one in opened if one.startswith(str(path))]


OUTBOX_DAMAGES = ["data = x''", "data = substr(data, 1, 100)", "data = 'text'"]


async def damage_outbox(power: Power, damage: str) -> Ino:
    """Make a file whose changelog is damaged before its upload; return the file."""
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store, hook=failing_append(store)) as session:
        ino = write_file(session, b"one")
        with pytest.raises(StoreUnavailableError):
            await session.flush()
        session.db.begin_local()
        session.db.run(f"UPDATE outbox SET {damage}")
        session.db.commit_durable()
    return ino


@pytest.mark.parametrize("damage", OUTBOX_DAMAGES)
async def test_damaged_changelog_in_the_outbox_is_not_uploaded(power: Power, damage: str) -> None:
    """Its upload would end the chain for all other hosts, so the mount is refused with advice."""
    await damage_outbox(power, damage)
    before = {key for key in power.store.objects if key.startswith("changelog/")}

    with pytest.raises(FormatError, match="fsck -y quarantines it and continues from the bucket"):
        async with power.session("a"):
            pass

    assert {key for key in power.store.objects if key.startswith("changelog/")} == before


@pytest.mark.parametrize("damage", OUTBOX_DAMAGES)
@pytest.mark.parametrize("row", ["mend", "unsettled"])
async def test_damaged_changelog_in_the_outbox_is_reported_with_advice_in_every_state(
    power: Power, damage: str, row: str
) -> None:
    """A read-only mount shows the files also if the next txg must be an image."""
    ino = await damage_outbox(power, damage)
    db = Database.open(StateDir(power.home / "a").database, Pragmas())
    db.begin_local()
    if row == "mend":
        abandoned_txgs.want(db, "its changelog is damaged")
    else:
        local_state.put(db, "unsettled", "1")
    db.commit()
    db.close()

    if row == "mend":
        async with power.session("a", options=OpenOptions(read_only=True)) as session:
            assert await read_file(session, ino) == b"one"
            await close_filesystem(session.volume, release=False)
        return
    with pytest.raises(FormatError, match="fsck -y quarantines it and continues from the bucket"):
        async with power.session("a", options=OpenOptions(read_only=True)):
            pass


@pytest.mark.parametrize("damage", OUTBOX_DAMAGES)
async def test_read_only_mount_shows_files_despite_a_damaged_changelog_in_the_outbox(
    power: Power, damage: str
) -> None:
    """It uploads nothing, and the rows have all changes. A notice reports the damage."""
    ino = await damage_outbox(power, damage)

    async with power.session("a", options=OpenOptions(read_only=True)) as session:
        assert await read_file(session, ino) == b"one"
        [notice] = [one for one in session.volume.notices if "damaged" in one]
        assert "fsck -y quarantines it" in notice
        await close_filesystem(session.volume, release=False)

    assert not list((power.home / "a").glob("kept-*"))
    with pytest.raises(FormatError, match="fsck -y quarantines it and continues from the bucket"):
        async with power.session("a"):
            pass


async def test_read_only_mount_with_a_damaged_outbox_and_later_txgs_is_refused(
    power: Power,
) -> None:
    """The damaged changelog may be one of these txgs, so the local state may be up to date."""
    await damage_outbox(power, OUTBOX_DAMAGES[0])
    async with power.session("b", options=TAKEOVER) as session:
        write_file(session, b"two")
        await unmount(session)

    with pytest.raises(FormatError, match="fsck -y quarantines it and continues from the bucket"):
        async with power.session("a", options=OpenOptions(read_only=True)):
            pass

    assert not list((power.home / "a").glob("kept-*"))


@pytest.mark.parametrize("host", ["a", "b"])
async def test_empty_object_of_the_last_changelog_is_healed_or_reported(
    power: Power, host: str
) -> None:
    """The server of the bucket may lose the content of its last object in a power cut."""
    await two_rounds(power)
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"three")
        await unmount(session)
    last = max(key for key in power.store.objects if key.startswith("changelog/"))
    power.store.objects[last] = b""

    if host == "a":
        async with power.session("a", tasks=False) as session:
            assert any(last in notice for notice in session.volume.notices)
            await session.flush()
            await unmount(session)
    else:
        with pytest.raises(BrokenChainError, match=f"{last}.*fsck -y"):
            async with power.session("b"):
                pass
        async with power.session("a", tasks=False) as session:
            await session.flush()
            await unmount(session)
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"three"


async def test_bucket_with_another_history_is_refused(power: Power) -> None:
    """The bucket was restored to an older copy, and another host has written to it."""
    before = await two_rounds(power)
    power.store.objects.clear()
    power.store.objects.update(before)  # type: ignore[arg-type]
    async with power.session("b", options=TAKEOVER) as session:
        for _ in range(4):
            write_file(session, b"another history")
            await session.flush()
        await session.close()

    with pytest.raises(OlderBucketError):
        async with power.session("a"):
            pass


async def test_host_restores_an_image_if_changelogs_since_its_last_mount_are_deleted(
    power: Power,
) -> None:
    await two_rounds(power)
    async with power.session("b") as session:
        ino = write_file(session, b"from b")
        await session.make_image()
        last = session.link.txg
        await session.close()
    for key in list(power.store.objects):
        txg = changelog_codec.parse_key(key)
        if txg is not None and txg < last:
            del power.store.objects[key]

    async with power.session("a") as session:
        assert await read_file(session, ino) == b"from b"
        assert not session.volume.notices


@pytest.mark.parametrize("unshipped", [False, True], ids=["shipped", "unshipped"])
async def test_host_that_was_offline_longer_than_the_retention_restores_an_image(
    power: Power, unshipped: bool
) -> None:
    """Outdated local state is quarantined only if it contains unshipped changes."""
    await power.retain(0)
    async with power.session("a", tasks=False) as session:
        write_file(session, b"shipped")
        await session.flush()
        if unshipped:
            write_file(session, b"not shipped")
        session.db.commit()
        place = session.link.txg
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        ino = write_file(session, b"from b")
        for _ in range(3):
            await session.make_image()
        await unmount(session)
    assert changelog_codec.key_of(place) not in power.store.objects

    async with power.session("a") as session:
        assert await read_file(session, ino) == b"from b"
        reported = [notice for notice in session.volume.notices if "recover-state" in notice]
        assert len(reported) == unshipped


@pytest.mark.parametrize("is_copy", [False, True])
async def test_change_that_was_not_uploaded_is_quarantined_if_another_host_or_copy_wrote_later(
    power: Power, *, is_copy: bool
) -> None:
    """The notice names the command that recovers files from a quarantined state."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"shipped")
        await session.flush()
        session.db.begin()
        inodes.touch(session.db, write_file(session, b"not shipped"), mtime_ns=5)
        session.db.commit()
        if is_copy:
            shutil.copytree(power.home / "a", power.home / "copy")
            await unmount(session)
    async with power.session("b", options=TAKEOVER) as session:
        ino = write_file(session, b"from b")
        await unmount(session)

    host = "copy" if is_copy else "a"
    async with power.session(host) as session:
        assert await read_file(session, ino) == b"from b"
        [notice] = session.volume.notices
    assert "another host, or another copy of the state directory, has written since" in notice
    assert "kept in" in notice
    assert "recover-state" in notice
    [kept] = (power.home / host).glob("kept-*")
    assert (kept / "meta.db").exists()
    assert list((kept / "blocks").rglob("*"))


async def test_killed_host_without_unshipped_changes_applies_new_changelogs(power: Power) -> None:
    """A crash without unshipped changes causes no quarantine."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"shipped")
        await session.flush()
        await session.shipper.ship(anyway=True)
    async with power.session("b", options=TAKEOVER) as session:
        ino = write_file(session, b"from b")
        await session.flush()
        await session.close()

    async with power.session("a") as session:
        assert await read_file(session, ino) == b"from b"
        assert not session.volume.notices


async def test_cached_block_of_a_file_removed_by_another_host_is_deleted(power: Power) -> None:
    """A cached block that no file uses is deleted, because it is not needed as a last copy."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"shipped")
        await unmount(session)
    async with power.session("b", options=TAKEOVER) as session:
        remove_file(session, ino)
        await unmount(session)

    async with power.session("a", tasks=False) as session:
        await session.durability.sync_all()
        assert list(session.files.numbers()) == []
        assert session.db.one("SELECT * FROM cached_blocks") is None
        assert not session.volume.notices


class _SecondPartAway(FaultyStore):
    """A store that copies a database file, and then fails at the second part of a changelog."""

    def __init__(self, inner: MemoryStore, database: Path) -> None:
        super().__init__(inner)
        self._database = database
        self.left = b""  # The content of the database file if the process were killed at this time.

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        """Return an object, but fail for the second part of a changelog."""
        if key.startswith(changelog_codec.PART_PREFIX) and key.endswith("1"):
            self.left = self._database.read_bytes()
            raise StoreUnavailableError(key, 1, 0.0, "away")
        return await super().get(key, max_bytes)


@pytest.mark.parametrize(
    ("journal_mode", "end"), [("off", "kill"), ("memory", "kill"), ("memory", "error")], ids=str
)
async def test_state_is_quarantined_after_a_kill_while_changelogs_are_applied_without_a_journal(
    power: Power, journal_mode: str, end: str
) -> None:
    """Before the kill, a part of a transaction may have reached the database file."""
    options = OpenOptions(pragmas=Pragmas(journal_mode=journal_mode))
    async with power.session("a", options=options, tasks=False) as session:
        write_file(session, b"from a")
        await unmount(session)
    async with power.session("b", bounds=UploadBounds(locations=2), tasks=False) as session:
        inos = [write_file(session, b"%d" % number * 3000) for number in range(9)]
        await unmount(session)
    database = power.home / "a" / "meta.db"
    store = _SecondPartAway(power.store, database)
    with pytest.raises(StoreUnavailableError):
        async with power.session("a", options=options, store=store, tasks=False):
            pass
    assert store.left
    if end == "kill":
        database.write_bytes(store.left)

    async with power.session("a", options=options, tasks=False) as session:
        for number, ino in enumerate(inos):
            assert await read_file(session, ino) == b"%d" % number * 3000
        why = [one for one in session.volume.notices if "crash with this journal mode" in one]
        assert len(why) == len(session.volume.notices) == (1 if end == "kill" else 0)


async def test_next_mount_completes_an_interrupted_application_of_changelogs(power: Power) -> None:
    """If a kill prevents the computation of the totals, the next mount computes them."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"from a")
        await unmount(session)
    async with power.session("b", options=TAKEOVER) as session:
        write_file(session, b"from b")
        await session.flush_at_end()
        wanted = session.db.counters.block_bytes, session.db.counters.stored_bytes
        await session.close()
        superblock, keyring = session.volume.superblock, session.volume.keyring
    db = Database.open(power.home / "a" / "meta.db", Pragmas())
    link = chain.recorded(db)
    assert link is not None
    await Replayer(power.store, keyring, superblock.uuid, db).forward(link, no_progress)
    db.close()

    async with power.session("a") as session:
        assert (session.db.counters.block_bytes, session.db.counters.stored_bytes) == wanted
        assert not session.volume.notices


async def test_pack_of_an_unshipped_compaction_is_not_treated_as_a_foreign_pack(
    power: Power,
) -> None:
    """Host b uses the pack numbers of a compaction that the killed writer did not ship."""
    async with power.session("a") as session:
        kept = write_file(session, b"kept" * 500)
        gone = write_file(session, os.urandom(50_000))
        await session.flush()
        remove_file(session, gone)
        await session.flush_at_end()
        assert await session.compactor.run_once() == 1
        session.db.begin_local()
        cut = Cut(session.uploader.sealer.seal_all(), BlockId(session.db.counters.next_block))
        session.uploader.begin_cut(cut)
        await session.uploader.drain(cut)
        await session.durability.sync_all()
    async with power.session("b", options=TAKEOVER) as session:
        ino = write_file(session, b"from b")
        await unmount(session)

    async with power.session("a") as session:
        assert await read_file(session, ino) == b"from b"
        assert await read_file(session, kept) == b"kept" * 500
        assert not session.volume.notices


def _resize(disk: Path, size_mib: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_mib}m", disk], check=True)


@pytest.mark.parametrize("grows_in", ["image", "changelog"])
async def test_full_disk_during_a_restore_leaves_the_local_state_usable(
    power: Power, small_disk: Path, grows_in: str
) -> None:
    """The restore is refused or fails in the middle; it succeeds after the disk has grown."""
    local = Power(power.store, small_disk)
    local.encrypted = power.encrypted
    _resize(small_disk, 3)
    async with local.session("b", tasks=False) as session:
        ino = write_file(session, b"first")
        await unmount(session)
    state = small_disk / "b"
    before = {path.name for path in state.iterdir()}
    async with power.session("a", tasks=False) as session:
        # The next mount restores this image, which is made while the database is small.
        if grows_in == "changelog":
            await session.publish_as_txg()
        session.db.begin()
        for number in range(800):
            new = inodes.create(session.db, REGULAR, 0, 0, ROOT_INO, 0).ino
            xattrs.set(session.db, new, b"user.x", os.urandom(2000) + b"%d" % number)
        await (session.publish_as_txg() if grows_in == "image" else session.flush())
        await unmount(session)

    with pytest.raises((OSError, DatabaseFullError), match="free") as caught:
        async with local.session("b", tasks=False):
            pass

    assert str(state) in text_of(caught.value)
    assert before <= {path.name for path in state.iterdir()}
    assert list((state / "tmp").iterdir()) == []
    with contextlib.closing(Database.open(state / "meta.db", Pragmas())) as db:
        assert local_state.get(db, "clean") == "1"
        assert inodes.get(db, ino).size_bytes == len(b"first")
    _resize(small_disk, 50)
    async with local.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"first"
        assert not session.volume.crashed
        await unmount(session)
