"""A search for content of the past that finds none."""

from s3fs_meta.cache.fetcher import Found
from s3fs_meta.meta.tables.block_map import Located


async def nowhere(_located: Located) -> Found | None:
    """Find no other location of a block."""
