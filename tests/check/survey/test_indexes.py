"""Tests of searching the indexes of other packs for blocks of a damaged pack."""

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, packs
from s3fs_meta.model import BlockIndex, BlockState, ObjectKey
from tests.check.healthy import Healthy
from tests.damage import flipped
from tests.packs import stray_pack

pytestmark = pytest.mark.thorough

CONTENT = b"ours, and intact elsewhere"
SAME = pytest.mark.parametrize("same", [True, False], ids=["same number", "other number"])


async def _lose(healthy: Healthy, damage: str) -> None:
    """Upload a block in its own pack, evict the block, and damage the pack."""
    healthy.evict(*healthy.write_uploaded(healthy.attributed, CONTENT))
    key = packs.object_key(healthy.db, healthy.pack_of(healthy.attributed, 0))
    objects = healthy.store.objects
    if damage == "missing":
        del objects[key]
    else:
        objects[key] = objects[key][:5] if damage == "torn" else flipped(objects[key], 3)


def _other_pack(healthy: Healthy, *, same: bool, content: bytes = CONTENT) -> ObjectKey:
    """Put a pack of an earlier epoch with the given content into the bucket."""
    block = healthy.block_of(healthy.attributed, 0) + (0 if same else 1000)
    key, data = stray_pack(healthy.keyring, 1, block=block, content=content)
    healthy.store.objects[key] = data
    return key


@SAME
@pytest.mark.parametrize("named", [True, False], ids=["named", "no row"])
@pytest.mark.parametrize("deep", [True, False], ids=["deep", "listing"])
@pytest.mark.parametrize("damage", ["missing", "torn", "unreadable"])
async def test_block_of_a_damaged_pack_is_found_in_another_pack(
    healthy: Healthy, damage: str, deep: bool, named: bool, same: bool
) -> None:
    """After a compaction or a second upload, a block may be in two packs.

    Without --deep, fsck does not detect a flipped bit in the first pack.
    """
    await _lose(healthy, damage)
    key = _other_pack(healthy, same=same)
    if named:
        healthy.db.begin()
        dead = packs.create(healthy.db, key, len(healthy.store.objects[key]))
        packs.stored(healthy.db, dead)
        packs.note_if_dead(healthy.db, dead)
        healthy.db.commit()

    report = await healthy.check_all(Mode.ALL, deep=deep)

    if damage == "unreadable" and not deep:
        assert not report.broken or report.broken == ["I49"]
        return
    row = blocks.get(healthy.db, healthy.block_of(healthy.attributed, 0))
    assert row.pack is not None
    assert packs.object_key(healthy.db, row.pack) == key
    assert (await healthy.check_all(deep=True)).lines() == ["clean"]


@SAME
@pytest.mark.parametrize("damage", ["missing", "unreadable"])
async def test_block_found_only_in_a_condemned_pack_becomes_dirty(
    healthy: Healthy, damage: str, same: bool
) -> None:
    """A delayed request may still delete the condemned pack, so the block needs a new pack."""
    await _lose(healthy, damage)
    key = _other_pack(healthy, same=same)
    healthy.db.begin()
    condemned = packs.create(healthy.db, key, len(healthy.store.objects[key]))
    packs.condemn(healthy.db, condemned)
    healthy.db.commit()

    await healthy.check_all(Mode.ALL, deep=True)

    block = healthy.block_of(healthy.attributed, 0)
    row = cached_blocks.get(healthy.db, block)
    assert row is not None
    assert row.state is BlockState.DIRTY
    assert healthy.files.read(block, 0, len(CONTENT)) == CONTENT
    assert blocks.get(healthy.db, block).pack is None


@SAME
async def test_damaged_record_in_another_pack_is_not_used(healthy: Healthy, same: bool) -> None:
    """No block is restored from a pack with an intact index but a damaged record of the block."""
    await _lose(healthy, "unreadable")
    key = _other_pack(healthy, same=same)
    entry = pack_codec.read_index(
        healthy.keyring, key, healthy.store.objects[key], len(healthy.store.objects[key])
    )[0]
    healthy.store.objects[key] = flipped(healthy.store.objects[key], entry.offset + 3)

    await healthy.check_all(Mode.ALL, deep=True)

    assert block_map.find(healthy.db, healthy.attributed, BlockIndex(0)) is None


async def test_fsck_without_repairs_does_not_cache_blocks_of_a_condemned_pack(
    healthy: Healthy,
) -> None:
    """Only a repair copies blocks of condemned packs to the cache directory."""
    await _lose(healthy, "missing")
    key = _other_pack(healthy, same=True)
    healthy.db.begin()
    packs.condemn(healthy.db, packs.create(healthy.db, key, len(healthy.store.objects[key])))
    healthy.db.commit()
    before = set(healthy.files.numbers())

    assert (await healthy.check_all(deep=True)).exit_status == 4

    assert set(healthy.files.numbers()) == before
