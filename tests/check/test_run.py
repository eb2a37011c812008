"""Tests of complete checks and repairs, as the fsck command runs them."""

from pathlib import Path

import pytest

from s3fs_meta.check.fsck import ROW_DAMAGE
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from tests.check.healthy import Healthy
from tests.check.random_damage import Vandal
from tests.sampled import sampled


async def test_fsck_without_a_cache_directory_reports_no_damage(healthy: Healthy) -> None:
    """Without a cache directory, fsck does not report any cached block as missing."""
    examined = Examined(healthy.db, healthy.store, healthy.keyring)
    report = await check_filesystem(examined, FsckOptions(), Report(), SystemClock())
    assert report.lines() == ["clean"]


async def test_fsck_can_check_a_mounted_filesystem(healthy: Healthy) -> None:
    """fsck opens the database read-only, and ignores the open commit group of the daemon."""
    healthy.db.begin()
    healthy.create(healthy.inner, b"not committed")
    reader = Database.open(healthy.db.path, Pragmas(), read_only=True)

    examined = Examined(reader, healthy.store, healthy.keyring, mounted=True)
    report = await check_filesystem(examined, FsckOptions(), Report(), SystemClock())

    assert report.lines() == ["clean"]
    reader.close()
    healthy.db.rollback()


async def test_empty_directories_left_by_a_crash_are_removed(healthy: Healthy) -> None:
    """fsck -p removes empty directories of the cache. No fsck run reports them as damage."""
    left = healthy.files.root / "ee"
    left.mkdir()

    assert (await healthy.check_all()).lines() == ["clean"]
    assert left.exists()
    assert (await healthy.check_all(Mode.SAFE)).lines() == ["clean"]
    assert not left.exists()


async def test_many_kinds_of_damage_are_repaired_in_one_run(healthy: Healthy) -> None:
    """After damage to rows, cached blocks and a pack row, all names and content are restored."""
    one, two = healthy.write_uploaded(healthy.attributed, b"lost object", b"intact copy")
    healthy.sql("DELETE FROM inodes WHERE ino = ?", healthy.inner)
    healthy.sql("UPDATE dentries SET cookie = cookie + 256")
    healthy.sql("UPDATE blocks SET refs = 7, plain_bytes = plain_bytes + 1 WHERE pack < 3")
    healthy.sql("DELETE FROM packs WHERE pack = ?", healthy.pack_of(healthy.uploaded, 1))
    healthy.sql("DELETE FROM cached_blocks WHERE state = 1")
    healthy.files.remove(one)

    report = await healthy.check_all(Mode.ALL, deep=True)

    assert report.exit_status == 1, report.lines()
    assert (await healthy.check_all(deep=True)).lines() == ["clean"]
    assert healthy.files.size(two) == len(b"intact copy")
    after = healthy.dump()
    for table in ("dentries", "symlinks", "xattrs", "hard_links", "block_map"):
        assert after[table] == healthy.before[table], table


# In this test, fsck replaces no lost image (I48) and deletes no packs (I49).
NOT_REPAIRED = {"I48", "I49"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
async def test_second_fsck_run_repairs_remaining_random_damage(tmp_path: Path, seed: int) -> None:
    """After two runs of fsck -y, a third run finds nothing to repair."""
    healthy = Healthy(tmp_path, seed % 7)
    healthy.add_lease()
    Vandal(healthy, seed).rage()

    for _ in range(2):  # The second run of fsck also checks lost+found.
        assert (await healthy.check_all(Mode.ALL, deep=True)).exit_status in {0, 1}

    assert set((await healthy.check_all(deep=True)).broken) <= NOT_REPAIRED
    healthy.db.close()


@pytest.mark.parametrize("seed", sampled(range(60), 4))
async def test_fsck_in_safe_mode_repairs_all_damaged_rows_or_none(
    tmp_path: Path, seed: int
) -> None:
    """After random damage, fsck -p leaves the database unchanged, or leaves no damaged row."""
    healthy = Healthy(tmp_path, seed % 7)
    healthy.add_lease()
    Vandal(healthy, seed).rage()
    before = healthy.dump()

    report = await healthy.check_all(Mode.SAFE, deep=True)

    if report.is_undone:
        assert (healthy.dump() == before, report.exit_status) == (True, 4)
    else:
        left = set((await healthy.check_all(deep=True)).broken)
        assert not left & {one.name for one in ROW_DAMAGE}
    healthy.db.close()


@pytest.mark.parametrize("index", ["blocks_by_pack", "blocks_by_hash"])
async def test_missing_index_does_not_prevent_the_surveys(healthy: Healthy, index: str) -> None:
    """The surveys read rows of blocks before the repair of I2 recreates the missing index."""
    healthy.sql(f"DROP INDEX {index}")
    healthy.sql(
        "UPDATE blocks SET pack_offset = -1 WHERE block = ?", healthy.block_of(healthy.uploaded, 1)
    )

    assert (await healthy.check_all()).broken == ["I2"]

    await healthy.assert_all_repaired()
