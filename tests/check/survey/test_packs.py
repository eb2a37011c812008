"""Tests of the survey that reads and verifies all packs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.check.context import Examination, SurveyContext
from s3fs_meta.check.observations import Evidence, Need
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.survey import bucket as bucket_survey
from s3fs_meta.check.survey import cache as cache_survey
from s3fs_meta.check.survey import packs as pack_survey
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import TransientStoreError
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.meta.tables import blocks, cached_blocks, packs
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.check.healthy import NOW_NS, Healthy
from tests.damage import flipped


@pytest.fixture
async def exam(healthy: Healthy) -> Examination:
    """Return the state of an fsck run after the surveys of the cache directory and the listing."""
    made = Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=False)
    cache_survey.survey(made, healthy.files, healthy.tmp)
    await bucket_survey.survey(SurveyContext(made, healthy.store, healthy.keyring))
    return made


async def test_survey_reads_every_pack_once_and_reports_its_progress(
    healthy: Healthy, exam: Examination
) -> None:
    """The last progress report contains the total size of all packs."""
    store = FaultyStore(healthy.store)
    reported: list[tuple[str, int, int]] = []

    await pack_survey.survey(
        SurveyContext(exam, store, healthy.keyring, lambda *step: reported.append(step))
    )

    keys = sorted(key for _, key in packs.all_keys(healthy.db))
    assert sorted(call.key for call in store.calls) == keys
    total = sum(len(healthy.store.objects[key]) for key in healthy.store.objects if key in keys)
    assert reported[-1] == ("packs verified", total, total)
    assert Need.CONTENT in exam.evidence.surveyed


async def test_failed_store_is_not_reported_as_damage(healthy: Healthy, exam: Examination) -> None:
    """If the store fails, the survey raises its error and does not report content as lost."""
    store = FaultyStore(healthy.store)
    store.fail("get")

    with pytest.raises(TransientStoreError):
        await pack_survey.survey(SurveyContext(exam, store, healthy.keyring))

    assert Need.CONTENT not in exam.evidence.surveyed


async def test_every_flipped_byte_of_a_pack_is_detected(healthy: Healthy) -> None:
    """A flipped byte anywhere in a pack makes a block unreadable or the index invalid."""
    [block] = healthy.write_uploaded(healthy.attributed, b"short content")
    row = blocks.get(healthy.db, block)
    assert row.pack is not None
    key = packs.object_key(healthy.db, row.pack)
    data = healthy.store.objects[key]
    for place in range(len(data)):
        verdict = pack_survey.verify_pack(healthy.keyring, key, flipped(data, place, 4), [row])
        assert verdict.unreadable or verdict.index_fault, place


async def test_blocks_of_an_oversized_pack_are_verified(healthy: Healthy) -> None:
    """The survey verifies the blocks of an oversized pack, but does not read its index."""
    [block] = healthy.write_uploaded(healthy.attributed, b"short content")
    row = blocks.get(healthy.db, block)
    assert row.pack is not None
    healthy.store.objects[packs.object_key(healthy.db, row.pack)] += bytes(PACK_BYTES_MAX)
    made = Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=False)
    cache_survey.survey(made, healthy.files, healthy.tmp)
    await bucket_survey.survey(SurveyContext(made, healthy.store, healthy.keyring))

    await pack_survey.survey(SurveyContext(made, healthy.store, healthy.keyring))

    assert healthy.db.all("SELECT pack FROM temp.seen_bad_indexes") == [(row.pack,)]
    assert healthy.db.all("SELECT block FROM temp.seen_unreadable") == []


async def test_wrong_row_of_a_block_is_distinguished_from_a_damaged_pack(healthy: Healthy) -> None:
    """For each pack, the survey returns the block locations from the pack's index."""
    one, two = healthy.write_uploaded(healthy.attributed, b"first block", b"second block")
    row = blocks.get(healthy.db, one)
    assert row.pack is not None
    key = packs.object_key(healthy.db, row.pack)
    wrong = row._replace(pack_offset=blocks.get(healthy.db, two).pack_offset)

    verdict = pack_survey.verify_pack(healthy.keyring, key, healthy.store.objects[key], [wrong])

    assert verdict.index_fault == ""
    assert [block for block, _ in verdict.unreadable] == [one]
    assert [(seen.block, seen.pack_offset) for seen in verdict.index_locations] == [(one, 0)]


async def test_wrong_offset_of_a_block_is_corrected_from_the_index(healthy: Healthy) -> None:
    """fsck corrects the offset in the row of a block, because its record in the pack is intact."""
    one, _two, _three = healthy.write_uploaded(healthy.attributed, b"a" * 90, b"b", b"c")
    healthy.evict(one)
    healthy.sql("UPDATE blocks SET pack_offset = 1, stored_bytes = 5 WHERE block = ?", one)

    found = (await healthy.check_all(deep=True)).broken
    assert "I51" in found
    assert (await healthy.check_all(Mode.ALL, deep=True)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("change", ["pack = pack - 1", "stored_bytes = stored_bytes - 1"])
async def test_wrong_sum_of_a_pack_reveals_a_wrong_location_without_a_deep_check(
    healthy: Healthy, change: str
) -> None:
    """A correction of the sum would hide the damage, and the pack of the block would count as dead.

    Then garbage collection would delete the only copy of the content.
    """
    healthy.evict(*healthy.write_uploaded(healthy.linked, b"a" * 900))
    healthy.evict(*healthy.write_uploaded(healthy.attributed, b"b"))
    block = healthy.block_of(healthy.attributed, 0)
    healthy.sql(f"UPDATE blocks SET {change} WHERE block = ?", block)

    assert (await healthy.check_all(Mode.ALL)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("change", ["pack = pack - 1", "stored_bytes = stored_bytes - 1"])
async def test_fsck_p_keeps_the_wrong_sum_of_a_pack_while_a_block_is_unreadable(
    healthy: Healthy, change: str
) -> None:
    """Only the wrong sum lets a later fsck -y find the block, and keeps its pack.

    The block does not overlap with any other block, so no row is known to be damaged.
    """
    _, dead = healthy.write_uploaded(healthy.linked, b"a", healthy.rnd.randbytes(900))
    freed, block = healthy.write_uploaded(healthy.attributed, healthy.rnd.randbytes(400), b"b")
    healthy.evict(dead, freed, block)
    for table in ("block_map", "blocks"):
        healthy.sql(f"DELETE FROM {table} WHERE block IN (?, ?)", dead, freed)
    await healthy.assert_all_repaired()  # corrects the counters and the sums
    whole = healthy.dump()
    healthy.sql(f"UPDATE blocks SET {change} WHERE block = ?", block)
    sums = healthy.db.all("SELECT pack, live_bytes, died_txg FROM packs")

    report = await healthy.check_all(Mode.SAFE)

    assert (report.exit_status, report.is_undone) == (4, False)
    assert healthy.db.all("SELECT pack, live_bytes, died_txg FROM packs") == sums
    assert (await healthy.check_all(Mode.ALL)).exit_status == 1
    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    after = healthy.dump()
    assert (after["blocks"], after["packs"]) == (whole["blocks"], whole["packs"])


async def test_fsck_p_corrects_the_sum_of_a_pack_whose_blocks_are_readable(
    healthy: Healthy,
) -> None:
    """Then only the sum is wrong."""
    healthy.sql("UPDATE packs SET live_bytes = live_bytes + 1")

    report = await healthy.check_all(Mode.SAFE)

    assert (report.exit_status, report.broken) == (1, ["I63"])
    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("other", ["in the same pack", "in another pack"])
async def test_hash_of_another_block_in_a_row_does_not_replace_the_content(
    healthy: Healthy, other: str
) -> None:
    """The index has the number of the block at its recorded offset, so only the hash is wrong."""
    one, two, _three = healthy.write_uploaded(healthy.attributed, b"a" * 90, b"b", b"c")
    healthy.evict(one)
    wrong = two if other == "in the same pack" else healthy.block_of(healthy.uploaded, 0)
    digest = blocks.get(healthy.db, wrong).hash
    healthy.sql("UPDATE blocks SET hash = ? WHERE block = ?", digest, one)

    assert (await healthy.check_all(Mode.ALL, deep=True)).exit_status == 1

    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert healthy.dump() == healthy.before


async def test_cached_copy_that_matches_a_wrong_hash_is_dropped(healthy: Healthy) -> None:
    """After the hash is corrected, the copy would have the content of another block."""
    one, two = healthy.write_uploaded(healthy.attributed, b"one", b"two")
    row, digest = blocks.get(healthy.db, one), blocks.get(healthy.db, two).hash
    healthy.sql("UPDATE blocks SET hash = ? WHERE block = ?", digest, one)
    healthy.files.adopt(one, b"two")

    assert (await healthy.check_all(Mode.ALL, deep=True)).exit_status == 1

    assert blocks.get(healthy.db, one) == row
    assert cached_blocks.get(healthy.db, one) is None
    assert healthy.files.size(one) is None
    assert (await healthy.check_all(deep=True)).lines() == ["clean"]


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Healthy]:
    """Return a filesystem whose packs are encrypted."""
    made = Healthy(tmp_path / "encrypted", keyring=Keyring.from_master(bytes(range(32))))
    made.add_lease()
    yield made
    made.db.close()


async def test_deep_check_verifies_encrypted_packs(encrypted: Healthy) -> None:
    """If fsck has the keys, it detects a flipped bit in an encrypted pack."""
    assert (await encrypted.check_all(deep=True)).lines() == ["clean"]
    key = packs.object_key(encrypted.db, encrypted.pack_of(encrypted.uploaded, 1))
    encrypted.store.objects[key] = flipped(encrypted.store.objects[key], 10)
    assert (await encrypted.check_all(deep=True)).broken == ["I51"]
