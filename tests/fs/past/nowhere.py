"""A stub of the search for another location of a past block, which finds no location."""

from s3fs_meta.cache.fetching.fetcher import Found
from s3fs_meta.meta.tables.block_map import Located


async def nowhere(_located: Located) -> Found | None:
    """Return None, which means that the block has no other location."""
