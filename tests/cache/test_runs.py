"""Which blocks one request of read-ahead brings."""

from s3fs_meta.cache.runs import runs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockId, PackId


def block(number: int, pack: int, offset: int, *, plain: int = 10, stored: int = 10) -> Located:
    """Return where a block is."""
    return Located(BlockId(number), plain, b"h", PackId(pack), offset, stored, None)


def test_blocks_side_by_side_are_one_run() -> None:
    """Compressed or not: where one ends, the next one begins."""
    wanted = [block(1, 1, 0, stored=4), block(2, 1, 4, stored=7), block(3, 1, 11)]
    assert list(runs(wanted, plain_bytes_max=100)) == [wanted]


def test_gap_another_pack_and_another_order_end_a_run() -> None:
    """One request cannot bring them."""
    wanted = [block(1, 1, 0), block(2, 1, 20), block(3, 2, 30), block(4, 2, 20)]
    assert list(runs(wanted, plain_bytes_max=100)) == [[each] for each in wanted]


def test_run_has_a_bound_but_always_a_block() -> None:
    """Content counts: it is what memory and cache must hold."""
    wanted = [block(number, 1, 10 * number) for number in range(5)]
    assert [len(run) for run in runs(wanted, plain_bytes_max=20)] == [2, 2, 1]
    assert [len(run) for run in runs(wanted, plain_bytes_max=1)] == [1] * 5


def test_nothing_is_no_run() -> None:
    """Callers never ask for an empty range."""
    assert not list(runs([], plain_bytes_max=1))
