"""Suspect blocks: marked after a power cut, verified before use; see also test_block_cache."""

from s3fs_meta.cache.crash_safety.suspects import Suspects
from tests.cache.conftest import CacheBench
from tests.descriptors import no_more_files


async def test_suspect_block_stays_cached_if_its_file_cannot_be_opened_now(
    bench: CacheBench,
) -> None:
    """A lack of open files does not prove that a power cut has torn the block."""
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
    """Dirty blocks are never suspect, because no other copy exists."""
    block = await bench.upload_content(b"content" * 1000)
    dirty = bench.write(1, b"dirty")
    suspects = bench.cache.suspects
    assert isinstance(suspects, Suspects)
    suspects.mark_all()
    assert block in suspects.blocks
    assert dirty not in suspects.blocks

    assert await suspects.verify(bench.located(0))
    assert not suspects
