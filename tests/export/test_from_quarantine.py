"""Tests of copying files out of quarantined state."""

import os
import shutil
import stat
from contextlib import closing
from pathlib import Path

import pytest
from typing_extensions import override

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.export import quarantine_list
from s3fs_meta.export.copier import ContentSource, CopiedFile, Copier, Empty
from s3fs_meta.export.from_quarantine import KeptContent, copy_all
from s3fs_meta.export.quarantine_list import Kept
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import (
    block_map,
    blocks,
    dentries,
    inodes,
    local_state,
    packs,
    symlinks,
    xattrs,
)
from s3fs_meta.meta.tables.cached_blocks import unsynced_tails
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino
from s3fs_meta.sync.history.newest_locations import newest_state
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power, location_of, power, write_file
from tests.tasks import running

__all__ = ["power"]

OLD = b"synced long before"


def _name(session: Session, ino: Ino, name: bytes, parent: Ino = ROOT_INO) -> Ino:
    dentries.add(session.db, parent, name, ino)
    return ino


def _quarantine_as(home: Path) -> Kept:
    return Kept(StateDir(home / "a").quarantine_as("1"), 1)


def _change(session: Session, ino: Ino, keep_bytes: int, more: bytes = b"") -> BlockId:
    """Replace a file's only block with a copy of the block's first bytes, followed by *more*."""
    session.db.begin()
    old = location_of(session, ino)
    block = session.cache.copy_on_write(old, ino, BlockIndex(0), keep_bytes, old.plain_bytes)
    block_map.set(session.db, ino, BlockIndex(0), block)
    session.cache.release(old.block)
    new = location_of(session, ino)
    session.cache.write_in_place(new, keep_bytes, more)
    size = max(inodes.get(session.db, ino).size_bytes, keep_bytes + len(more))
    session.db.inodes.run("UPDATE inodes SET size_bytes = ? WHERE ino = ?", (size, ino))
    return block


def _cut_power(session: Session, *lost: BlockId) -> None:
    """Simulate a reboot of the host, and truncate the cache files of the lost blocks."""
    local_state.put(session.db, "boot_id", "another")
    session.db.commit()
    for block in lost:
        session.files.cut_after(block, 0)


class _KeepingCopier(Copier):
    """A copier that records every copied file."""

    def __init__(self, db: Database, source: ContentSource, target: Path) -> None:
        super().__init__(db, source, target)
        self.copied: list[CopiedFile] = []

    @override
    async def fill(self, file: Empty) -> CopiedFile:
        self.copied.append(await super().fill(file))
        return self.copied[-1]


async def _copy(power: Power, kept: Kept, keyring: Keyring, target: Path) -> list[CopiedFile]:
    os.mkdir(target)
    with closing(quarantine_list.open_database(kept)) as db:
        copier = _KeepingCopier(db, KeptContent(db, kept.blocks, power.store, keyring), target)
        await copy_all(db, quarantine_list.changed(db, None), copier, no_progress)
    return copier.copied


async def test_recovered_file_has_the_metadata_of_its_quarantined_inode(
    power: Power, tmp_path: Path
) -> None:
    """A file is copied with its names, mode, times, extended attributes and unshipped content."""
    async with power.session("a", tasks=False) as session:
        session.db.begin()
        folder = inodes.create(session.db, 0o40750, 0, 0, ROOT_INO, 5 * 10**9, nlink=2).ino
        _name(session, folder, b"folder")
        file = _name(session, write_file(session, b"not uploaded"), b"file", folder)
        _name(session, file, b"link")
        inodes.set_times(session.db, file, ctime_ns=1, mtime_ns=10**18 + 7, atime_ns=2)
        xattrs.set(session.db, file, b"user.colour", b"blue")
        empty = inodes.create(session.db, 0o40711, 0, 0, folder, 6 * 10**9, nlink=2).ino
        _name(session, empty, b"empty", folder)
        pointer = inodes.create(session.db, 0o120777, 0, 0, ROOT_INO, 0, size_bytes=4).ino
        symlinks.create(session.db, _name(session, pointer, b"pointer"), b"/etc")
        session.db.commit()
        keyring = session.volume.keyring
    target = tmp_path / "out"

    (copied,) = await _copy(power, _quarantine_as(tmp_path), keyring, target)

    assert (copied.size_bytes, copied.missing) == (12, [])
    assert (target / "folder" / "file").read_bytes() == b"not uploaded"
    assert (target / "folder" / "file").samefile(target / "link")
    assert (target / "link").stat().st_mtime_ns == 10**18 + 7
    assert os.getxattr(target / "link", "user.colour") == b"blue"
    assert os.readlink(target / "pointer") == "/etc"
    assert stat.S_IMODE((target / "folder").stat().st_mode) == 0o750
    assert (target / "folder").stat().st_mtime_ns == 5 * 10**9
    assert stat.S_IMODE((target / "folder" / "empty").stat().st_mode) == 0o711
    assert (target / "folder" / "empty").stat().st_mtime_ns == 6 * 10**9


async def test_block_of_a_missing_pack_is_found_by_its_hash_in_another_pack(
    power: Power, tmp_path: Path
) -> None:
    content = b"written again" * 1000
    async with power.session("a", tasks=False) as session:
        ino = _name(session, write_file(session, content), b"file")
        await session.flush_at_end()
        old = location_of(session, ino)
        assert old.pack is not None
        key = packs.object_key(session.db, old.pack)
        await session.close()
    kept = _quarantine_as(tmp_path)
    shutil.rmtree(kept.blocks)
    del power.store.objects[key]
    async with power.session("b", tasks=False) as session:
        session.damage.mark(Mark(old.pack, None), "is missing")
        write_file(session, content)
        await session.flush()
        opened = session.volume
        elsewhere = newest_state(opened)
        with closing(quarantine_list.open_database(kept)) as db:
            found = KeptContent(db, kept.blocks, power.store, opened.keyring, elsewhere.find)
            lost = KeptContent(db, kept.blocks, power.store, opened.keyring)
            async with running(elsewhere.run):
                assert [one.data for one in await found.read([old])] == [content]
                assert [one.data for one in await lost.read([old])] == [b""]


async def test_evicted_content_of_quarantined_state_is_read_from_the_bucket(
    power: Power, tmp_path: Path
) -> None:
    """Evicted blocks, and blocks with a damaged cache file, are read from their pack."""
    async with power.session("a") as session:
        gone = _name(session, write_file(session, b"evicted" * 1000), b"gone")
        rotten = _name(session, write_file(session, b"rotten" * 1000), b"rotten")
        await session.flush()
        keyring = session.volume.keyring
    kept = _quarantine_as(tmp_path)
    for path in kept.blocks.rglob("*"):
        if path.is_file() and path.read_bytes().startswith(b"evicted"):
            path.unlink()
        elif path.is_file():
            path.write_bytes(b"x" * 6000)

    copied = await _copy(power, kept, keyring, tmp_path / "out")

    assert [one.missing for one in copied] == [[], []]
    assert (tmp_path / "out" / "gone").read_bytes() == b"evicted" * 1000
    assert (tmp_path / "out" / "rotten").read_bytes() == b"rotten" * 1000
    assert gone != rotten


async def test_unsynced_content_is_reported_after_a_power_loss(
    power: Power, tmp_path: Path
) -> None:
    """After a power loss, unsynced content is copied and its range is reported."""
    async with power.session("a", tasks=False) as session:
        _name(session, write_file(session, b"synced"), b"synced")
        await session.durability.sync_all()
        _name(session, write_file(session, b"young"), b"young")
        local_state.put(session.db, "boot_id", "another")
        session.db.commit()
        keyring = session.volume.keyring

    copied = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert {one.path: one.unsure for one in copied} == {b"synced": [], b"young": [(0, 4)]}
    assert (tmp_path / "out" / "young").read_bytes() == b"young"


async def test_unsynced_content_is_reported_before_a_mount_has_verified_it(
    power: Power, tmp_path: Path
) -> None:
    async with power.session("a", tasks=False) as session:
        _name(session, write_file(session, b"young"), b"young")
        local_state.put(session.db, "power_lost", "1")
        session.db.commit()
        keyring = session.volume.keyring

    (copied,) = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert copied.unsure == [(0, 4)]


async def test_unsynced_sealed_block_is_reported_after_a_power_loss(
    power: Power, tmp_path: Path
) -> None:
    """An unsynced sealed block (frozen for upload) is copied and reported as never synced."""
    async with power.session("a", tasks=False) as session:
        ino = _name(session, write_file(session, b"young"), b"young")
        located = location_of(session, ino)
        session.cache.seal([located.block])
        _cut_power(session)
        keyring = session.volume.keyring

    (copied,) = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert copied.unsure == [(0, 4)]


async def _log_all(session: Session, ino: Ino) -> None:
    """Make content durable in the intent log by fsync, without a sync of the block files."""
    await session.durability.sync_file(ino)
    await session.durability.make_log_room()
    await session.durability.sync_all()
    ino = _name(session, write_file(session, b"fsynced"), b"fsynced")
    await session.durability.sync_file(ino)


async def test_quarantined_content_in_the_intent_log_survives_a_power_loss(
    power: Power, tmp_path: Path
) -> None:
    """If the block files have lost content, it is read from the quarantined intent log."""
    async with power.session("a", tasks=False) as session:
        await _log_all(session, _name(session, write_file(session, OLD), b"old"))
        [tail] = unsynced_tails(session.db)
        session.db.begin()
        _cut_power(session, tail.block)
        keyring = session.volume.keyring

    copied = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert {one.path: (one.missing, one.unsure) for one in copied} == {
        b"old": ([], []),
        b"fsynced": ([], []),
    }
    assert (tmp_path / "out" / "fsynced").read_bytes() == b"fsynced"


async def test_content_is_reported_as_lost_if_the_key_of_the_intent_log_is_damaged(
    power: Power, tmp_path: Path
) -> None:
    """Only content in the intent log is lost. All other files are copied."""
    async with power.session("a", tasks=False) as session:
        await _log_all(session, _name(session, write_file(session, OLD), b"old"))
        [tail] = unsynced_tails(session.db)
        session.db.begin()
        local_state.put(session.db, "intent_log", "junk")
        _cut_power(session, tail.block)
        keyring = session.volume.keyring

    copied = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert {one.path: one.missing for one in copied} == {
        b"old": [],
        b"fsynced": [(0, 6)],
    }


async def test_torn_copy_of_a_block_is_restored_from_the_intent_log(
    power: Power, tmp_path: Path
) -> None:
    """If a copied block has lost bytes, they are read from the intent log of the original block."""
    async with power.session("a", tasks=False) as session:
        await _log_all(session, _name(session, write_file(session, OLD), b"old"))
        [origin] = unsynced_tails(session.db)
        session.db.begin()
        session.cache.seal([origin.block])
        [ino] = [
            row[0]
            for row in session.db.all("SELECT ino FROM dentries WHERE name = ?", (b"fsynced",))
        ]
        copy = _change(session, ino, 7, b" and more")
        _cut_power(session, origin.block, copy)
        keyring = session.volume.keyring

    copied = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    [found] = [one for one in copied if one.path == b"fsynced"]
    assert (tmp_path / "out" / "fsynced").read_bytes()[:7] == b"fsynced"
    assert found.missing == [(7, 15)]


@pytest.mark.parametrize("torn", [False, True], ids=["from the file", "from the pack"])
async def test_torn_copy_of_an_uploaded_block_is_replaced_by_the_uploaded_block(
    power: Power, tmp_path: Path, torn: bool
) -> None:
    """If a copied block has lost its bytes, the content of the uploaded original is used."""
    async with power.session("a", tasks=False) as session:
        ino = _name(session, write_file(session, OLD), b"file")
        await session.flush()
        old = location_of(session, ino)
        session.db.begin()
        blocks.add_ref(session.db, old.block)  # The old block file stays in the cache.
        new = _change(session, ino, 6, b"-" * 40)
        if torn:
            session.files.write_within(old.block, 0, b"torn", 0)
        _cut_power(session, new)
        keyring = session.volume.keyring

    (copied,) = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert (copied.missing, copied.unsure) == ([(len(OLD), 45)], [])
    assert (tmp_path / "out" / "file").read_bytes() == OLD + bytes(46 - len(OLD))


async def test_torn_copy_of_a_dirty_block_is_replaced_by_its_synced_content(
    power: Power, tmp_path: Path
) -> None:
    """If a copied block has lost its bytes, the synced part of the original is used."""
    async with power.session("a", tasks=False) as session:
        ino = _name(session, write_file(session, OLD), b"file")
        await session.durability.sync_all()
        first = _change(session, ino, len(OLD), b" and more")
        _change(session, ino, 25, b"!!")
        _cut_power(session, first)
        keyring = session.volume.keyring

    (copied,) = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert (copied.missing, copied.unsure) == ([], [(len(OLD), 26)])
    assert (tmp_path / "out" / "file").read_bytes() == OLD + b" and mo!!"


async def test_lost_write_into_a_hole_is_reported_without_the_rest_of_the_hole(
    power: Power, tmp_path: Path
) -> None:
    async with power.session("a", tasks=False) as session:
        session.db.begin()
        ino = inodes.create(session.db, 0o100644, 0, 0, ROOT_INO, 0, size_bytes=103).ino
        block = session.cache.write_new(ino, BlockIndex(0), 100, b"new")
        _name(session, ino, b"file")
        _cut_power(session, block)
        keyring = session.volume.keyring

    (copied,) = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert (copied.missing, copied.unsure) == ([(100, 102)], [])


async def test_changed_copy_of_a_deleted_block_is_reported_as_unsynced(
    power: Power, tmp_path: Path
) -> None:
    """If the pack of the original is missing, a changed block is copied from its cache file."""
    async with power.session("a", tasks=False) as session:
        ino = _name(session, write_file(session, OLD), b"file")
        await session.flush()
        _change(session, ino, 6, b"-" * 12)
        _cut_power(session)
        keyring = session.volume.keyring
    packs = [key for key in power.store.objects if key.startswith("pack/")]
    await power.store.delete(packs)

    (copied,) = await _copy(power, _quarantine_as(tmp_path), keyring, tmp_path / "out")

    assert (copied.missing, copied.unsure) == ([], [(0, 17)])
    assert (tmp_path / "out" / "file").read_bytes() == OLD[:6] + b"-" * 12


async def test_recover_state_continues_after_entries_with_damaged_rows(
    power: Power, tmp_path: Path
) -> None:
    """The quarantined database may be damaged. Each entry that cannot be copied is reported."""
    async with power.session("a", tasks=False) as session:
        db = session.db
        _name(session, write_file(session, b"good"), b"good")
        row = _name(session, write_file(session, b"row"), b"row")
        mode = _name(session, write_file(session, b"mode"), b"mode")
        kind = _name(session, write_file(session, b"kind"), b"kind")
        name = _name(session, write_file(session, b"name"), b"name")
        link = inodes.create(db, stat.S_IFLNK | 0o777, 0, 0, ROOT_INO, 1).ino
        _name(session, link, b"link")
        db.inodes.run("UPDATE inodes SET uid = 'text' WHERE ino = ?", (row,))
        db.inodes.run("UPDATE inodes SET mode = CAST(x'ff' AS TEXT) WHERE ino = ?", (mode,))
        db.inodes.run("UPDATE inodes SET mode = 420 WHERE ino = ?", (kind,))
        db.run("UPDATE dentries SET name = CAST(x'ff' AS TEXT) WHERE ino = ?", (name,))
        db.commit()
        keyring = session.volume.keyring
    kept, target = _quarantine_as(tmp_path), tmp_path / "out"
    os.mkdir(target)
    with closing(quarantine_list.open_database(kept)) as db:
        copier = Copier(db, KeptContent(db, kept.blocks, power.store, keyring), target)
        tally = await copy_all(db, quarantine_list.changed(db, None), copier, no_progress)

    assert {one.path for one in tally.incomplete} == {b"row", b"mode", b"kind", b"link"}
    assert sorted(os.listdir(os.fsencode(target))) == [b"good", b"\xff"]
    assert (target / os.fsdecode(b"\xff")).read_bytes() == b"name"


async def test_recover_state_copies_a_lost_block_as_a_hole_and_reports_it(
    power: Power, tmp_path: Path
) -> None:
    """If a cache file is short or missing, the range of the missing bytes is reported."""
    async with power.session("a", tasks=False) as session:
        _name(session, write_file(session, b"short" * 100), b"short")
        _name(session, write_file(session, b"gone!" * 100), b"gone")
        session.db.commit()
        keyring = session.volume.keyring
    kept = _quarantine_as(tmp_path)
    for path in kept.blocks.rglob("*"):
        if path.is_file() and path.read_bytes().startswith(b"short"):
            os.truncate(path, 5)
        elif path.is_file():
            path.unlink()

    copied = await _copy(power, kept, keyring, tmp_path / "out")

    assert {one.path: one.missing for one in copied} == {
        b"short": [(5, 499)],
        b"gone": [(0, 499)],
    }
    assert (tmp_path / "out" / "short").read_bytes() == b"short" + bytes(495)
