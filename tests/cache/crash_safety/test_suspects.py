"""Suspect blocks: marked after a power cut, verified before use; see also test_block_cache."""

from s3fs_meta.cache.crash_safety.suspects import Suspects
from tests.cache.conftest import CacheBench


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
