"""Choosing the blocks that are fetched with a small one."""

from s3fs_meta.cache.read_coalescing import choose, extent, runs
from s3fs_meta.limits import KIB, NEIGHBOUR_FETCH_BYTES, SMALL_BLOCK_BYTES
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, PackId

_LARGE = SMALL_BLOCK_BYTES
_ANY = 1 << 40


def _at(offset: int, stored: int = 1000, plain: int = 2000) -> Located:
    return Located(BlockId(offset), plain, b"", PackId(1), offset, stored, None)


def _chosen(middle: Located, *candidates: Located, plain_bytes_max: int = _ANY) -> list[int]:
    chosen = choose(middle, candidates, plain_bytes_max=plain_bytes_max)
    return sorted(each.block for each in chosen)


def test_blocks_on_both_sides_are_neighbours() -> None:
    """The requested block itself is not one."""
    assert _chosen(_at(5000), _at(6000), _at(5000), _at(4000), _at(7000)) == [4000, 6000, 7000]


def test_range_is_bounded_and_prefers_following_blocks() -> None:
    """Files are mostly read in the order in which they were written."""
    step = 50 * KIB
    rows = [_at(number * step, step, step) for number in range(100)]

    chosen = choose(rows[50], rows, plain_bytes_max=_ANY)

    start, stop = extent([rows[50], *chosen])
    assert start == rows[50].block
    assert NEIGHBOUR_FETCH_BYTES - step < stop - start <= NEIGHBOUR_FETCH_BYTES


def test_large_blocks_are_neither_included_nor_skipped_over() -> None:
    """Large blocks are not fetched as neighbours, and end the range."""
    assert _chosen(_at(0), _at(1000, plain=_LARGE), _at(2000)) == [2000]
    assert _chosen(_at(0), _at(1000, _LARGE, _LARGE), _at(1001 + _LARGE)) == []


def test_total_content_is_bounded() -> None:
    """Highly compressible blocks would fill the cache with a small download."""
    assert _chosen(_at(0), _at(1000), _at(2000), _at(3000), plain_bytes_max=4000) == [1000, 2000]
    assert _chosen(_at(2000), _at(1000), plain_bytes_max=-1) == []


def block(number: int, pack: int, offset: int, *, plain: int = 10, stored: int = 10) -> Located:
    """Return the location of a block."""
    return Located(BlockId(number), plain, b"h", PackId(pack), offset, stored, None)


def test_adjacent_blocks_form_a_run() -> None:
    """Compressed or not: each begins where the one before ends."""
    wanted = [block(1, 1, 0, stored=4), block(2, 1, 4, stored=7), block(3, 1, 11)]
    assert list(runs(wanted, plain_bytes_max=100)) == [wanted]


def test_gap_other_pack_or_other_order_ends_a_run() -> None:
    """Blocks with a gap, in another pack or in another order need separate requests."""
    wanted = [block(1, 1, 0), block(2, 1, 20), block(3, 2, 30), block(4, 2, 20)]
    assert list(runs(wanted, plain_bytes_max=100)) == [[each] for each in wanted]


def test_run_is_bounded_and_has_at_least_one_block() -> None:
    """The bound is on content, which memory and cache must hold."""
    wanted = [block(number, 1, 10 * number) for number in range(5)]
    assert [len(run) for run in runs(wanted, plain_bytes_max=20)] == [2, 2, 1]
    assert [len(run) for run in runs(wanted, plain_bytes_max=1)] == [1] * 5


def test_no_blocks_make_no_run() -> None:
    """Callers never request an empty range."""
    assert not list(runs([], plain_bytes_max=1))
