"""What a crash leaves in the cache directory beside the rows."""

import pytest

from s3fs_meta.cache import recovery
from s3fs_meta.errors import LostBlockError

from .conftest import CacheBench


async def test_content_behind_the_last_sync_is_an_error_after_a_cut(bench: CacheBench) -> None:
    """Its size may have reached the disk before its pages: never zeros."""
    block = bench.write(0, b"synced")
    bench.write(1, b"whole")
    await bench.cache.sync_blocks()
    bench.cache.write_in_place(bench.located(0), 6, b" and not")

    recovery.distrust(bench.db, bench.files)

    assert bench.cache.read_local(bench.located(0), 0, 6) == b"synced"
    assert bench.cache.read_local(bench.located(1), 0, 5) == b"whole"
    with pytest.raises(LostBlockError, match="ends at byte 6"):
        bench.cache.read_local(bench.located(0), 0, 7)
    assert bench.files.size(block) == 6


async def test_short_and_missing_files_stay_as_they_are(bench: CacheBench) -> None:
    """There is nothing to cut."""
    one, two = bench.write(0, b"short"), bench.write(1, b"gone")
    await bench.cache.sync_blocks()
    bench.cache.write_in_place(bench.located(0), 5, b"er")
    bench.cache.write_in_place(bench.located(1), 4, b"!")
    bench.files.cut_after(one, 3)
    bench.files.remove(two)

    recovery.distrust(bench.db, bench.files)

    assert (bench.files.size(one), bench.files.size(two)) == (3, None)


async def test_files_of_an_undone_group_go(bench: CacheBench) -> None:
    """Nothing names them, and nobody else would ever remove them."""
    kept = bench.write(0, b"kept")
    bench.db.commit()
    bench.write(1, b"undone")
    bench.db.rollback()

    recovery.let_strays_go(bench.db, bench.files)

    assert sorted(bench.files.numbers()) == [kept]


async def test_file_that_fsck_could_use_stays(bench: CacheBench) -> None:
    """Its row is lost, but its block is in no pack: the file is all there is."""
    block = bench.write(0, b"content")
    bench.db.run("DELETE FROM cached_blocks")
    await bench.cache.sync_blocks()

    recovery.let_strays_go(bench.db, bench.files)

    assert sorted(bench.files.numbers()) == [block]
