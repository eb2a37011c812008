"""The choice of blocks that one request downloads: adjacent blocks, or small neighbours of a block.

Owns: the grouping and the choice. Does not know: rows, the store, which blocks are cached.
"""

from collections.abc import Iterable, Iterator, Sequence

from s3fs_meta.limits import NEIGHBOUR_FETCH_BYTES, SMALL_BLOCK_BYTES
from s3fs_meta.meta.tables.block_map import Located


def choose(
    middle: Located, candidates: Sequence[Located], *, plain_bytes_max: int
) -> list[Located]:
    """Return the small candidates that are fetched together with *middle*, in any order.

    All returned blocks lie in one range of NEIGHBOUR_FETCH_BYTES in the pack, with gaps of at most
    SMALL_BLOCK_BYTES. Blocks after *middle* have priority, because files are usually read in the
    order in which they were written.

    Args:
        middle: the requested block.
        candidates: blocks of the pack, in any order; *middle* may be among them.
        plain_bytes_max: bound on the total length of the returned blocks.
    """
    small = sorted((row for row in candidates if row.plain_bytes < SMALL_BLOCK_BYTES), key=_start)
    behind = [row for row in small if _start(row) >= _stop(middle)]
    before = [row for row in reversed(small) if _stop(row) <= _start(middle)]
    chosen: list[Located] = []
    start, stop = _start(middle), _stop(middle)
    for row in behind:
        fits = _stop(row) - start <= NEIGHBOUR_FETCH_BYTES
        if not fits or _start(row) - stop > SMALL_BLOCK_BYTES or row.plain_bytes > plain_bytes_max:
            break
        chosen.append(row)
        stop, plain_bytes_max = _stop(row), plain_bytes_max - row.plain_bytes
    for row in before:
        fits = stop - _start(row) <= NEIGHBOUR_FETCH_BYTES
        if not fits or start - _stop(row) > SMALL_BLOCK_BYTES or row.plain_bytes > plain_bytes_max:
            break
        chosen.append(row)
        start, plain_bytes_max = _start(row), plain_bytes_max - row.plain_bytes
    return chosen


def extent(rows: Sequence[Located]) -> tuple[int, int]:
    """Return the range of a pack that contains all *rows*, which must not be empty."""
    return min(map(_start, rows)), max(map(_stop, rows))


def stored_bytes(rows: Sequence[Located]) -> int:
    """Return the size of the range that contains all *rows* in a pack; 0 for no rows."""
    if not rows:
        return 0
    start, stop = extent(rows)
    return stop - start


def _start(row: Located) -> int:
    assert row.pack_offset is not None, "an uploaded block has a location"
    return row.pack_offset


def _stop(row: Located) -> int:
    assert row.stored_bytes is not None, "an uploaded block has a location"
    return _start(row) + row.stored_bytes


def runs(
    wanted: Iterable[Located], *, plain_bytes_max: int, gap_bytes_max: int = 0
) -> Iterator[list[Located]]:
    """Yield runs of uploaded blocks that are adjacent in one pack, in the given order.

    A run contains at most *plain_bytes_max* bytes of content, but at least one block.

    Args:
        gap_bytes_max: bytes of other records that may be between two blocks of a run.
    """
    run: list[Located] = []
    plain_bytes = 0
    for located in wanted:
        plain_bytes += located.plain_bytes
        if run and not (
            plain_bytes <= plain_bytes_max
            and located.pack == run[-1].pack
            and 0 <= _start(located) - _stop(run[-1]) <= gap_bytes_max
        ):
            yield run
            run, plain_bytes = [], located.plain_bytes
        run.append(located)
    if run:
        yield run
