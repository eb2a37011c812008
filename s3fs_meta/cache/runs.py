"""Grouping blocks that are adjacent in a pack, to download each group with one request.

Owns: the grouping. Does not know: rows, the store, which blocks are cached.
"""

from collections.abc import Iterable, Iterator

from s3fs_meta.meta.tables.block_map import Located


def runs(wanted: Iterable[Located], *, plain_bytes_max: int) -> Iterator[list[Located]]:
    """Yield runs of uploaded blocks, each without gaps in one pack, in the given order.

    A run has at most *plain_bytes_max* bytes of content, but at least one block.
    """
    run: list[Located] = []
    plain_bytes = 0
    for located in wanted:
        plain_bytes += located.plain_bytes
        if run and (plain_bytes > plain_bytes_max or not _follows(run[-1], located)):
            yield run
            run, plain_bytes = [], located.plain_bytes
        run.append(located)
    if run:
        yield run


def _follows(last: Located, located: Located) -> bool:
    assert last.pack_offset is not None, "only uploaded blocks have a place"
    assert last.stored_bytes is not None, "with a length"
    return located.pack == last.pack and located.pack_offset == last.pack_offset + last.stored_bytes
