"""Suspect blocks: after a power cut, clean blocks are verified before they are read."""

from s3fs_meta.cache.crash_safety.suspects import Suspects
from tests.cache.conftest import CacheBench
from tests.descriptors import no_more_files


async def test_suspect_block_stays_cached_if_its_file_cannot_be_opened_now(
    bench: CacheBench,
) -> None:
    """If no file descriptor is free, verification cannot prove that the block file is torn."""
    block = await bench.upload_content(b"content")
    suspects = bench.cache.suspects
    suspects.mark_all()
    bench.files.let_go([block])

    with no_more_files():
        await suspects.verify_all()

    assert suspects.blocks == {block}
    assert bench.files.read(block, 0, 7) == b"content"
    await suspects.verify_all()
    assert not suspects


async def test_suspect_block_is_trusted_after_verification(bench: CacheBench) -> None:
    """A clean block is suspect until verification; a dirty block has no other copy to check."""
    block = await bench.upload_content(b"content" * 1000)
    dirty = bench.write(1, b"dirty")
    suspects = bench.cache.suspects
    assert isinstance(suspects, Suspects)
    suspects.mark_all()
    assert block in suspects.blocks
    assert dirty not in suspects.blocks

    assert await suspects.verify(bench.located(0))
    assert not suspects


async def test_block_with_an_unreadable_row_stays_suspect(bench: CacheBench) -> None:
    """The verification after a power cut continues with the other blocks."""
    for index in (0, 1):
        bench.write(index, b"content")
    await bench.upload(0, 1)
    damaged, intact = (bench.located(index).block for index in (0, 1))
    bench.db.begin()
    bench.db.run("UPDATE blocks SET hash = 'text' WHERE block = ?", (damaged,))
    suspects = bench.cache.suspects
    suspects.mark_all()
    assert suspects.blocks == {damaged, intact}

    await suspects.verify_all()

    assert suspects.blocks == {damaged}
