"""Tests of damage to the bucket, one invariant at a time."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from typing_extensions import override

from s3fs_meta.check.report import Mode
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Head, Lease
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.tables import block_map, cached_blocks, damage_marks, packs, xattrs
from s3fs_meta.model import ROOT_INO, BlockIndex, BlockState, Epoch, Ino, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.check.healthy import NOW_NS, Healthy
from tests.check.survey.checking import EarlyListing
from tests.damage import flipped
from tests.packs import stray_pack

pytestmark = pytest.mark.thorough


def _key_of(healthy: Healthy, ino: Ino, index: int) -> ObjectKey:
    return packs.object_key(healthy.db, healthy.pack_of(ino, index))


async def test_cached_blocks_of_a_missing_pack_become_dirty(healthy: Healthy) -> None:
    """The next mount uploads dirty blocks, so the content gets a new pack (I46)."""
    healthy.write_uploaded(healthy.attributed, b"still in the cache")
    del healthy.store.objects[_key_of(healthy, healthy.attributed, 0)]

    await healthy.assert_all_mended("I46")

    row = cached_blocks.get(healthy.db, healthy.block_of(healthy.attributed, 0))
    assert row is not None
    assert row.state is BlockState.DIRTY


async def test_fsck_lists_every_file_damaged_by_a_missing_pack(healthy: Healthy) -> None:
    """fsck -p reports the paths of both damaged files, and -y records their lost ranges.

    Invariant I46.
    """
    healthy.db.begin()
    other = healthy.create(healthy.inner, b"other")
    made = [healthy.write(ino, 0, b"%d" % ino) for ino in (healthy.attributed, other)]
    healthy.upload(*made)
    healthy.db.commit()
    healthy.evict(*made)
    del healthy.store.objects[_key_of(healthy, other, 0)]

    report = await healthy.check_all(Mode.SAFE)
    assert (report.exit_status, report.broken) == (4, ["I46"])
    texts = [verdict.advice for verdict in report.verdicts if verdict.found]
    assert ["on a host that may have cached them" in advice for advice in texts] == [True]
    paths = [finding.path for finding in report.verdicts[0].examples]
    assert paths == ["/directory/inner/attributed", "/directory/inner/other"]
    await healthy.assert_all_mended("I46", concerns={healthy.attributed, other})

    for ino in (healthy.attributed, other):
        assert block_map.find(healthy.db, ino, BlockIndex(0)) is None
        assert xattrs.find(healthy.db, ino, lost_ranges.ATTRIBUTE) is not None
    assert xattrs.get(healthy.db, healthy.attributed, b"user.colour") == b"blue"


@pytest.mark.parametrize("damage", ["state = 1", "state = 3", "live_bytes = 0"])
async def test_pack_that_only_the_listing_omits_is_found_despite_a_damaged_row(
    healthy: Healthy, damage: str
) -> None:
    """The repair of the row makes the pack STORED, so fsck must know whether its object exists.

    Invariants I36, I46 and I63.
    """
    [block] = healthy.write_uploaded(healthy.attributed, b"in a pack of its own")
    healthy.evict(block)
    pack = healthy.pack_of(healthy.attributed, 0)
    healthy.sql(f"UPDATE packs SET {damage} WHERE pack = ?", pack)
    key = packs.object_key(healthy.db, pack)
    data = healthy.store.objects.pop(key)
    store = EarlyListing(healthy.store, "pack/")
    healthy.store.objects[key] = data

    assert (await healthy.check_all(Mode.ALL, store=store)).exit_status == 1

    assert block_map.find(healthy.db, healthy.attributed, BlockIndex(0)) == block
    assert (await healthy.check_all()).lines() == ["clean"]


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "not cached"])
@pytest.mark.parametrize("damage", ["missing", "unreadable"])
async def test_block_with_an_expected_number_but_different_content_is_not_accepted(
    healthy: Healthy, cached: bool, damage: str
) -> None:
    """If two hosts wrote at the same time, a pack may have other content under a block's number."""
    [block] = healthy.write_uploaded(healthy.attributed, b"ours")
    key = _key_of(healthy, healthy.attributed, 0)
    if not cached:
        healthy.evict(block)
    if damage == "missing":
        del healthy.store.objects[key]
    else:
        healthy.store.objects[key] = flipped(healthy.store.objects[key], 1)
    for number in range(5):  # fsck may read packs in any order.
        random = bytes([number * 50]) * 16
        other, data = stray_pack(healthy.keyring, 1, random, block=block, content=b"theirs")
        healthy.store.objects[other] = data

    await healthy.check_all(Mode.ALL, deep=True)

    row = healthy.db.one(
        "SELECT b.hash, b.pack FROM block_map AS m JOIN blocks AS b ON b.block = m.block"
        " WHERE m.ino = ? AND m.block_index = 0",
        (healthy.attributed,),
    )
    # A cached block becomes dirty and is uploaded again. An uncached block becomes a hole.
    assert row == ((None, None) if cached else None)


async def test_torn_cached_block_is_not_uploaded_again(healthy: Healthy) -> None:
    """fsck does not use a cached block that differs from its hash (I46)."""
    [block] = healthy.write_uploaded(healthy.attributed, b"torn in the cache")
    healthy.files.write_within(block, 0, b"T", 0)
    del healthy.store.objects[_key_of(healthy, healthy.attributed, 0)]

    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert block_map.find(healthy.db, healthy.attributed, BlockIndex(0)) is None


async def test_truncated_pack_loses_only_the_blocks_beyond_its_end(healthy: Healthy) -> None:
    """fsck copies the blocks before the end of a truncated pack to the cache as dirty blocks.

    Invariant I47.
    """
    healthy.evict(*healthy.write_uploaded(healthy.attributed, b"one of two", b"two of two"))
    pack, key = healthy.pack_of(healthy.attributed, 0), _key_of(healthy, healthy.attributed, 0)
    [offset] = healthy.db.all(
        "SELECT pack_offset FROM blocks WHERE block = ?",
        (healthy.block_of(healthy.attributed, 1),),
    )[0]
    healthy.store.objects[key] = healthy.store.objects[key][: offset + 3]
    before = packs.get(healthy.db, pack)

    report = await healthy.check_all()
    assert report.broken == ["I47", "I51"]
    assert [finding.path for finding in report.verdicts[1].examples] == [
        "/directory/inner/attributed"
    ]
    assert (await healthy.check_all(Mode.SAFE)).exit_status == 4
    await healthy.assert_all_repaired()
    kept = healthy.block_of(healthy.attributed, 0)
    assert healthy.files.read(kept, 0, 10) == b"one of two"
    row = cached_blocks.get(healthy.db, kept)
    assert row is not None
    assert row.state is BlockState.DIRTY
    assert block_map.find(healthy.db, healthy.attributed, BlockIndex(1)) is None
    after = packs.get(healthy.db, pack)
    assert (after.object_bytes, after.live_bytes) == (before.object_bytes, 0)
    assert damage_marks.covers(healthy.db, pack, None)


async def test_cached_blocks_of_exchanged_packs_become_dirty(healthy: Healthy) -> None:
    """Two packs that were stored under each other's keys do not match their rows."""
    healthy.db.begin()
    one, other = healthy.create(ROOT_INO, b"one"), healthy.create(ROOT_INO, b"other")
    contents = {one: (b"one" * 500, b"two" * 700), other: (b"three" * 900,)}
    for ino, parts in contents.items():
        healthy.write_uploaded(ino, *parts)
    keys = [_key_of(healthy, ino, 0) for ino in contents]
    objects = healthy.store.objects
    objects[keys[0]], objects[keys[1]] = objects[keys[1]], objects[keys[0]]
    stored = dict(objects)

    assert (await healthy.check_all()).broken == ["I47", "I51"]
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert healthy.store.objects == stored, "fsck must not change packs, even exchanged ones"
    for ino, parts in contents.items():
        for index, part in enumerate(parts):
            block = healthy.block_of(ino, index)
            row = cached_blocks.get(healthy.db, block)
            assert row is not None
            assert row.state is BlockState.DIRTY
            assert healthy.files.read(block, 0, len(part)) == part
    assert (await healthy.check_all()).lines() == ["clean"]


async def test_wrong_pack_size_in_a_pack_row_is_corrected(healthy: Healthy) -> None:
    """fsck corrects a wrong size in the row of a pack, because the pack itself is intact."""
    healthy.evict(*healthy.write_uploaded(healthy.attributed, b"in a pack of its own"))
    pack = healthy.pack_of(healthy.attributed, 0)
    size_bytes = packs.get(healthy.db, pack).object_bytes
    healthy.sql("UPDATE packs SET object_bytes = object_bytes + 7 WHERE pack = ?", pack)
    healthy.sql("UPDATE totals SET stored_bytes = stored_bytes + 7")
    healthy.before = healthy.dump()

    assert (await healthy.check_all()).broken == ["I47"]
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert packs.get(healthy.db, pack).object_bytes == size_bytes
    assert damage_marks.marks(healthy.db) == []


async def test_wrong_pack_size_in_a_listing_is_checked_by_a_request_for_the_pack(
    healthy: Healthy,
) -> None:
    """fsck requests a pack whose listed size is wrong, and learns the correct size (I47)."""
    healthy.evict(*healthy.write_uploaded(healthy.attributed, b"in a pack of its own"))
    key = _key_of(healthy, healthy.attributed, 0)

    report = await healthy.check_all(Mode.ALL, store=_WrongListing(healthy.store, key))

    assert (report.exit_status, report.broken) == (0, [])
    assert healthy.dump() == healthy.before


class _WrongListing(FaultyStore):
    """A store whose listing contains a wrong size for one object."""

    def __init__(self, inner: ObjectStore, key: ObjectKey) -> None:
        super().__init__(inner)
        self._key = key

    @override
    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield all objects; one of them has a wrong size."""
        async with aclosing(super().list(prefix, after=after)) as found:
            async for info in found:
                wrong = info.key == self._key
                yield info._replace(size_bytes=info.size_bytes + 5) if wrong else info


async def test_fsck_requests_a_new_image_if_the_image_in_the_lease_is_missing(
    healthy: Healthy,
) -> None:
    """fsck marks the database as changed, so that a new image of the local state is made.

    Invariant I48.
    """
    manifest = ObjectKey("image/000000000001-1-0123456789abcdef/manifest")
    head = Head(Txg(1), manifest, "0" * 64)
    lease = Lease(Epoch(1), "holder", "host", 1, NOW_NS, released=True, head=head, nonce="00" * 16)
    healthy.store.objects[lease_codec.KEY] = lease_codec.encode(lease)
    healthy.db.changed = False

    assert (await healthy.check_all()).broken == ["I48"]
    report = await healthy.check_all(Mode.SAFE)

    assert (report.exit_status, report.broken) == (1, ["I48"])
    assert "missing" in report.verdicts[0].examples[0].what
    assert healthy.db.changed, "a database without changes would get no new image"
    assert healthy.dump() == healthy.before


async def test_fsck_reports_a_missing_lease(healthy: Healthy) -> None:
    """A bucket without a lease object cannot be mounted."""
    del healthy.store.objects[lease_codec.KEY]
    assert (await healthy.check_all()).broken == ["I48"]


async def test_unreferenced_packs_are_deleted_only_on_request(healthy: Healthy) -> None:
    """Quarantined state may need unreferenced packs; only -y --delete-unknown deletes them.

    Invariant I49.
    """
    unnamed, data = stray_pack(healthy.keyring, 3)
    healthy.store.objects[unnamed] = data

    report = await healthy.check_all(Mode.ALL)
    assert (report.exit_status, report.broken) == (0, ["I49"])
    for mode in (Mode.REPORT, Mode.SAFE):
        assert (await healthy.check_all(mode, delete_unknown=True)).verdicts[0].left == 1
    assert unnamed in healthy.store.objects

    report = await healthy.check_all(Mode.ALL, delete_unknown=True)
    assert report.verdicts[0].left == 0
    assert unnamed not in healthy.store.objects
    assert (await healthy.check_all()).lines() == ["clean"]
    assert healthy.dump() == healthy.before


async def test_pack_without_a_row_is_not_deleted_if_the_database_is_damaged(
    healthy: Healthy,
) -> None:
    """A damaged database may have lost the row of a pack with live blocks (I49)."""
    pack = healthy.pack_of(healthy.uploaded, 1)
    key = packs.object_key(healthy.db, pack)
    healthy.sql("CREATE TABLE notes (text TEXT)")
    healthy.sql("DELETE FROM packs WHERE pack = ?", pack)

    report = await healthy.check_all(Mode.ALL, delete_unknown=True)

    assert (report.exit_status, report.broken) == (4, ["I2"])
    assert key in healthy.store.objects
    assert "no pack was deleted" in report.notes[-1]
    healthy.sql("DROP TABLE notes")
    assert (await healthy.check_all(Mode.ALL, delete_unknown=True)).exit_status == 1
    assert (await healthy.check_all()).lines() == ["clean"]
    assert key in healthy.store.objects


async def test_foreign_objects_are_counted_and_kept(healthy: Healthy) -> None:
    """fsck deletes no objects of users or other filesystems, even if a key looks right (I49)."""
    other = Keyring.from_master(bytes(32))
    stranger, of_another = stray_pack(other, 3)
    later, of_later = stray_pack(healthy.keyring, healthy.epoch, bytes(range(16)))
    damaged, data = stray_pack(healthy.keyring, 3, bytes(range(1, 17)))
    foreign = {
        "holiday.jpg": b"content",
        "pack/notes.txt": b"content",
        "other/superblock": b"content",
        f"other/{stranger}": of_another,
        stranger: of_another,
        damaged: flipped(data, len(data) - 20),
        pack_codec.new_key(Epoch(3), b"x" * 16): b"",
        "probe/superblock": b"content",
    }
    healthy.store.objects.update({ObjectKey(key): value for key, value in foreign.items()})
    healthy.store.objects[later] = of_later

    report = await healthy.check_all(Mode.ALL, delete_unknown=True)

    assert (report.exit_status, report.broken, report.foreign_count) == (0, [], len(foreign))
    assert "kept 8 objects that do not belong to this filesystem: " in report.notes[0]
    assert {*foreign, later} <= healthy.store.objects.keys()


async def test_changelogs_and_their_parts_count_as_known_objects(healthy: Healthy) -> None:
    """fsck does not report changelogs or their parts as unknown, although no row lists them."""
    prefix = changelog_codec.part_prefix(Txg(7), Epoch(1), bytes(changelog_codec.RANDOM_BYTES))
    for key in changelog_codec.key_of(Txg(7)), changelog_codec.part_key(prefix, 0):
        healthy.store.objects[key] = b"content"

    assert (await healthy.check_all()).lines() == ["clean"]


async def test_blocks_of_a_pack_with_a_damaged_index_become_dirty(healthy: Healthy) -> None:
    """fsck copies the readable blocks to the cache, so that the next mount uploads them again.

    Invariant I50.
    """
    healthy.evict(*healthy.write_uploaded(healthy.attributed, b"readable"))
    key = _key_of(healthy, healthy.attributed, 0)
    healthy.store.objects[key] = flipped(healthy.store.objects[key], -12)

    assert (await healthy.check_all()).lines() == ["clean"]
    await healthy.assert_all_mended("I50", deep=True)

    block = healthy.block_of(healthy.attributed, 0)
    row = cached_blocks.get(healthy.db, block)
    assert row is not None
    assert row.state is BlockState.DIRTY
    assert healthy.files.read(block, 0, 8) == b"readable"


async def test_deep_check_finds_an_unreadable_block(healthy: Healthy) -> None:
    """fsck replaces the block with the flipped bit by a hole, and keeps the pack's other block.

    Invariant I51.
    """
    healthy.evict(*healthy.write_uploaded(healthy.attributed, b"one of two", b"two of two"))
    key = _key_of(healthy, healthy.attributed, 0)
    healthy.store.objects[key] = flipped(healthy.store.objects[key], 2)

    await healthy.assert_all_mended("I51", concerns={healthy.attributed}, deep=True)

    assert block_map.find(healthy.db, healthy.attributed, BlockIndex(0)) is None
    assert block_map.find(healthy.db, healthy.attributed, BlockIndex(1)) is not None


async def test_unreadable_block_that_is_cached_becomes_dirty(healthy: Healthy) -> None:
    """The upload of the intact cached block replaces the damaged record in the pack (I51)."""
    healthy.write_uploaded(healthy.attributed, b"sound in the cache")
    key = _key_of(healthy, healthy.attributed, 0)
    healthy.store.objects[key] = b"\0\0" + healthy.store.objects[key][2:]

    await healthy.assert_all_mended("I51", deep=True)

    row = cached_blocks.get(healthy.db, healthy.block_of(healthy.attributed, 0))
    assert row is not None
    assert row.state is BlockState.DIRTY
