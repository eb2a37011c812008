"""The choice of neighbouring blocks that one request fetches together."""

from s3fs_meta.cache.fetching.read_coalescing import choose, extent, runs
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


def test_small_block_is_fetched_with_the_blocks_before_and_after_it() -> None:
    assert _chosen(_at(5000), _at(6000), _at(5000), _at(4000), _at(7000)) == [4000, 6000, 7000]


def test_number_of_fetched_neighbouring_blocks_is_limited_and_later_blocks_are_preferred() -> None:
    """Later blocks are preferred, because files are mostly read in the order of writing."""
    step = 50 * KIB
    rows = [_at(number * step, step, step) for number in range(100)]

    chosen = choose(rows[50], rows, plain_bytes_max=_ANY)

    start, stop = extent([rows[50], *chosen])
    assert start == rows[50].block
    assert NEIGHBOUR_FETCH_BYTES - step < stop - start <= NEIGHBOUR_FETCH_BYTES


def test_large_block_is_not_fetched_together_with_a_small_block() -> None:
    """A large block is not fetched as a neighbour, and ends the byte range of the request."""
    assert _chosen(_at(0), _at(1000, plain=_LARGE), _at(2000)) == [2000]
    assert _chosen(_at(0), _at(1000, _LARGE, _LARGE), _at(1001 + _LARGE)) == []


def test_uncompressed_size_of_fetched_neighbouring_blocks_is_limited() -> None:
    """Without a size limit, a small download of highly compressed blocks could fill the cache."""
    assert _chosen(_at(0), _at(1000), _at(2000), _at(3000), plain_bytes_max=4000) == [1000, 2000]
    assert _chosen(_at(2000), _at(1000), plain_bytes_max=-1) == []


def block(number: int, pack: int, offset: int, *, plain: int = 10, stored: int = 10) -> Located:
    """Return a block with its location."""
    return Located(BlockId(number), plain, b"h", PackId(pack), offset, stored, None)


def test_blocks_with_adjacent_records_form_a_run() -> None:
    """Blocks are adjacent if each record in the pack begins where the previous record ends."""
    wanted = [block(1, 1, 0, stored=4), block(2, 1, 4, stored=7), block(3, 1, 11)]
    assert list(runs(wanted, plain_bytes_max=100)) == [wanted]


def test_run_of_blocks_ends_at_a_gap_or_at_another_pack() -> None:
    wanted = [block(1, 1, 0), block(2, 1, 20), block(3, 2, 30), block(4, 2, 20)]
    assert list(runs(wanted, plain_bytes_max=100)) == [[each] for each in wanted]


def test_run_of_blocks_has_at_least_one_block_and_a_limited_length() -> None:
    """The uncompressed size of a run is limited, because memory and cache must hold the run."""
    wanted = [block(number, 1, 10 * number) for number in range(5)]
    assert [len(run) for run in runs(wanted, plain_bytes_max=20)] == [2, 2, 1]
    assert [len(run) for run in runs(wanted, plain_bytes_max=1)] == [1] * 5


def test_empty_list_of_blocks_contains_no_run() -> None:
    assert not list(runs([], plain_bytes_max=1))


def test_small_gap_within_the_limit_does_not_end_a_run_of_blocks() -> None:
    """A request may include a small gap between two blocks, which saves a second request."""
    wanted = [block(1, 1, 0), block(2, 1, 20), block(3, 1, 41), block(4, 1, 40)]
    found = list(runs(wanted, plain_bytes_max=100, gap_bytes_max=10))
    assert found == [wanted[:2], wanted[2:3], wanted[3:]]
