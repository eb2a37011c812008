"""Tests of packs that are stored under keys of other packs."""

from pathlib import Path

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.meta.tables import blocks, cached_blocks, damage_marks, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockState, Ino, ObjectKey
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.check.healthy import Healthy
from tests.damage import flipped

pytestmark = pytest.mark.thorough


def _write(healthy: Healthy, first: bytes, second: bytes) -> tuple[ObjectKey, ObjectKey]:
    """Write two files, upload each file in its own pack, and evict them; return the two keys."""
    healthy.evict(*healthy.write_uploaded(healthy.linked, first))
    healthy.evict(*healthy.write_uploaded(healthy.attributed, second))
    one, other = (
        packs.object_key(healthy.db, healthy.pack_of(ino, 0))
        for ino in (healthy.linked, healthy.attributed)
    )
    return one, other


def _content(healthy: Healthy, ino: Ino) -> bytes:
    block = healthy.block_of(ino, 0)
    row = cached_blocks.get(healthy.db, block)
    assert row is not None
    assert row.state is BlockState.DIRTY
    return healthy.files.read(block, 0, healthy.files.size(block) or 0)


def _exchange(healthy: Healthy, one: ObjectKey, other: ObjectKey) -> None:
    objects = healthy.store.objects
    objects[one], objects[other] = objects[other], objects[one]


@pytest.mark.parametrize("deep", [True, False], ids=["deep", "listing"])
@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["plain", "encrypted"])
async def test_exchange_of_two_packs_of_different_sizes_loses_no_block(
    tmp_path: Path, key: bytes | None, deep: bool
) -> None:
    """The listed sizes reveal an exchange of two packs, even if no block is cached."""
    healthy = _made(tmp_path, key)
    _exchange(healthy, *_write(healthy, b"short", b"a content that is longer"))

    report = await healthy.check_all(Mode.ALL, deep=deep)

    assert report.exit_status == 1
    assert _content(healthy, healthy.linked) == b"short"
    assert _content(healthy, healthy.attributed) == b"a content that is longer"
    assert (await healthy.check_all(deep=deep)).exit_status == 0


@pytest.mark.parametrize("by", ["deep", "failed read"])
@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["plain", "encrypted"])
async def test_exchange_of_two_packs_of_equal_size_loses_no_block(
    tmp_path: Path, key: bytes | None, by: str
) -> None:
    """If the listed sizes are correct, only --deep or a failed read detects the exchange."""
    healthy = _made(tmp_path, key)
    one, other = _write(healthy, b"a first content", b"another content")
    assert len(healthy.store.objects[one]) == len(healthy.store.objects[other])
    _exchange(healthy, one, other)
    assert (await healthy.check_all()).exit_status == 0
    if by == "failed read":  # A mount marks a pack as damaged if it cannot read the pack.
        healthy.db.begin()
        damage_marks.add(healthy.db, Mark(healthy.pack_of(healthy.linked, 0), None))
        healthy.db.commit()

    assert (await healthy.check_all(Mode.ALL, deep=by == "deep")).exit_status == 1

    assert _content(healthy, healthy.linked) == b"a first content"
    assert _content(healthy, healthy.attributed) == b"another content"
    again = await healthy.check_all(Mode.ALL, deep=True)
    assert (again.exit_status, again.notes) == (0, [])


async def test_blocks_are_found_in_a_pack_that_is_stored_under_another_key(
    healthy: Healthy,
) -> None:
    """A pack that has overwritten another pack is recognised. The other pack's blocks are lost."""
    one, other = _write(healthy, b"kept", b"lost, and longer")
    healthy.store.objects[other] = healthy.store.objects.pop(one)

    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert _content(healthy, healthy.linked) == b"kept"


async def test_block_with_a_wrong_pack_in_its_row_is_found_in_an_exchanged_pack(
    tmp_path: Path,
) -> None:
    """The indexes list the hash of the block, although its row names another pack."""
    healthy = _made(tmp_path, bytes(range(32)))
    one, other = _write(healthy, b"short", b"a content that is longer")
    _exchange(healthy, one, other)
    wrong, block = healthy.pack_of(healthy.uploaded, 0), healthy.block_of(healthy.linked, 0)
    healthy.sql("UPDATE blocks SET pack = ? WHERE block = ?", wrong, block)

    assert (await healthy.check_all(Mode.ALL, deep=True)).exit_status == 1

    assert _content(healthy, healthy.linked) == b"short"
    assert _content(healthy, healthy.attributed) == b"a content that is longer"
    assert (await healthy.check_all(deep=True)).exit_status == 0


@pytest.mark.parametrize("mode", [Mode.SAFE, Mode.ALL])
async def test_hash_of_a_block_in_a_renamed_pack_does_not_replace_a_cached_block(
    healthy: Healthy, mode: Mode
) -> None:
    """The block is readable in its own pack, so only its hash is wrong."""
    healthy.evict(*healthy.write_uploaded(healthy.linked, b"in the renamed pack"))
    one = packs.object_key(healthy.db, healthy.pack_of(healthy.linked, 0))
    [block] = healthy.write_uploaded(healthy.attributed, b"another content....")
    digest = blocks.get(healthy.db, healthy.block_of(healthy.linked, 0)).hash
    healthy.store.objects[ObjectKey("pack.backup")] = healthy.store.objects.pop(one)
    row = blocks.get(healthy.db, block)
    healthy.sql("UPDATE blocks SET hash = ? WHERE block = ?", digest, block)

    report = await healthy.check_all(mode, deep=True)

    saved = [note for note in report.notes if "is stored under the key" in note]
    assert all("1 of its blocks" in note for note in saved)
    if healthy.files.size(block) is not None:
        assert healthy.files.read(block, 0, row.plain_bytes) == b"another content...."
    if mode is Mode.ALL:
        assert blocks.get(healthy.db, block) == row
        assert _content(healthy, healthy.linked) == b"in the renamed pack"
        assert (await healthy.check_all(deep=True)).exit_status == 0


@pytest.mark.parametrize("deep", [True, False], ids=["deep", "listing"])
@pytest.mark.parametrize("name", ["pack/00/1-00112233445566778899aabbccddeeff", "pack.backup"])
async def test_blocks_of_a_renamed_pack_are_found(healthy: Healthy, name: str, deep: bool) -> None:
    """A pack under an unknown name is recognised by its size and by its content."""
    one, other = _write(healthy, b"kept", b"in another pack, and longer")
    objects = healthy.store.objects
    objects[ObjectKey(name)] = objects.pop(one)
    store = FaultyStore(healthy.store)

    report = await healthy.check_all(Mode.ALL, deep=deep, store=store)

    assert report.exit_status == 1
    assert [call.method for call in store.calls if call.key == name].count("get") == 1
    assert sum("is stored under the key" in note for note in report.notes) == 1
    assert _content(healthy, healthy.linked) == b"kept"
    assert ObjectKey(name) in objects
    assert other in objects
    assert (await healthy.check_all(deep=deep)).exit_status == 0


async def test_damaged_pack_is_not_recognised_under_another_key(healthy: Healthy) -> None:
    """A pack with a flipped bit in its index is not found under any key."""
    one, other = _write(healthy, b"a first content", b"another content")
    healthy.store.objects[other] = flipped(healthy.store.objects[other], -20)

    report = await healthy.check_all(Mode.ALL, deep=True)

    assert not [note for note in report.notes if "is stored under" in note]
    assert one in healthy.store.objects


async def test_check_without_repairs_caches_no_block_of_an_exchanged_pack(healthy: Healthy) -> None:
    """A check without repairs only reports the exchange of packs."""
    _exchange(healthy, *_write(healthy, b"short", b"a content that is longer"))
    before = sorted(healthy.files.numbers())

    assert (await healthy.check_all()).exit_status == 4

    assert sorted(healthy.files.numbers()) == before


def _made(tmp_path: Path, key: bytes | None) -> Healthy:
    made = Healthy(tmp_path, keyring=None if key is None else Keyring.from_master(key))
    made.add_lease()
    return made
