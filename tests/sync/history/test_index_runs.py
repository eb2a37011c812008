"""Merging changes into objects of the history index."""

import pytest

from s3fs_meta.codec.history_index import ChangedInode, HistoryIndex, RemovedName
from s3fs_meta.codec.image import content_hash
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.meta.row_history import ChangedRows, LostName
from s3fs_meta.model import Cookie, Ino, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.index_runs import TxgChanges, of_runs, of_txgs

RUN = HISTORY_FAN_OUT
UUID = "01234567-89ab-cdef-0123-456789abcdef"
GONE = LostName(Ino(1), b"gone", Cookie(0), Ino(7))


def txg_changes(txg: int, rows: ChangedRows | None) -> TxgChanges:
    """Return the changes of one txg of an example chain."""
    link = Link(Txg(txg), content_hash(b"%d" % txg), 1000 + txg)
    return TxgChanges(link, content_hash(b"%d" % (txg - 1)), rows)


def run_of(number: int, changed: dict[int, ChangedRows]) -> HistoryIndex:
    """Return the index object of a run; *changed* maps positions in the run to changed rows."""
    first = number * RUN + 1
    empty = ChangedRows(set(), set(), set())
    return of_txgs(UUID, [txg_changes(first + at, changed.get(at, empty)) for at in range(RUN)])


def rows(
    *content: int, other: tuple[int, ...] = (), names: tuple[LostName, ...] = ()
) -> ChangedRows:
    """Return the changed rows of a txg."""
    return ChangedRows({Ino(ino) for ino in content}, {Ino(ino) for ino in other}, set(names))


def test_index_object_has_a_bit_for_each_changed_txg() -> None:
    made = run_of(0, {0: rows(5, names=(GONE,)), 3: rows(5, 7, other=(6, 7)), 31: rows(other=(5,))})

    assert list(made.inodes) == [
        ChangedInode(Ino(5), 0b1001, 1 << 31),
        ChangedInode(Ino(6), 0, 0b1000),
        ChangedInode(Ino(7), 0b1000, 0b1000),
    ]
    assert list(made.names) == [RemovedName(*GONE, 1)]
    assert (made.first, made.last, made.unknown) == (1, RUN, 0)
    assert (made.first_ns, made.created_ns) == (1001, 1000 + RUN)
    assert (made.previous, made.hash) == (content_hash(b"0"), content_hash(b"%d" % RUN))


def test_index_object_of_level_2_has_a_bit_for_each_changed_level_1_object() -> None:
    runs = [run_of(number, {}) for number in range(RUN)]
    runs[2] = run_of(2, {1: rows(5, names=(GONE,)), 9: rows(5)})
    runs[30] = run_of(30, {4: rows(5, other=(5,), names=(GONE,))})
    made = of_runs(2, UUID, runs)

    assert list(made.inodes) == [ChangedInode(Ino(5), 1 << 2 | 1 << 30, 1 << 30)]
    assert list(made.names) == [RemovedName(*GONE, 1 << 2 | 1 << 30)]
    assert (made.level, made.first, made.last) == (2, 1, RUN * RUN)
    assert (made.previous, made.hash) == (runs[0].previous, runs[-1].hash)


def test_unknown_changes_are_marked_in_all_higher_index_levels() -> None:
    empty = [txg_changes(txg, rows()) for txg in range(1, RUN + 1)]
    first = of_txgs(UUID, [*empty[:6], txg_changes(7, None), None, *empty[8:]])
    assert first.unknown == 0b1100_0000

    made = of_runs(2, UUID, [first, None, *(run_of(number, {}) for number in range(2, RUN))])
    assert made.unknown == 0b11


def test_index_cannot_be_built_from_txgs_that_do_not_form_a_chain() -> None:
    txgs = [txg_changes(txg, rows()) for txg in range(1, RUN + 1)]
    for wrong in (
        [*txgs[:4], txgs[4]._replace(previous=content_hash(b"x")), *txgs[5:]],
        [None, *txgs[1:]],
        [*txgs[:-1], None],
    ):
        with pytest.raises(FormatError):
            of_txgs(UUID, wrong)
    with pytest.raises(FormatError):
        of_runs(2, UUID, [run_of(0, {}), run_of(0, {}), *(run_of(at, {}) for at in range(2, RUN))])
