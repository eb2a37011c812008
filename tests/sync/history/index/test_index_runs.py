"""Merging of changes into objects of the history index."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from s3fs_meta.codec.history_index import ALL_BITS, ChangedInode, HistoryIndex, RemovedName
from s3fs_meta.codec.image import content_hash
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.meta.row_history import ChangedRows, LostName
from s3fs_meta.model import Cookie, Ino, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.index import index_runs
from s3fs_meta.sync.history.index.index_runs import (
    RunMerger,
    TooManyChangesError,
    TxgChanges,
    changes_in,
)

RUN = HISTORY_FAN_OUT
UUID = "01234567-89ab-cdef-0123-456789abcdef"
GONE = LostName(Ino(1), b"gone", Cookie(0), Ino(7))


def txg_changes(txg: int, rows: ChangedRows | None) -> TxgChanges:
    """Return the changes in one txg of an example chain."""
    link = Link(Txg(txg), content_hash(b"%d" % txg), 1000 + txg)
    changes = None if rows is None else changes_in(rows)
    return TxgChanges(link, content_hash(b"%d" % (txg - 1)), changes)


def of_txgs(txgs: Sequence[TxgChanges | None]) -> HistoryIndex:
    """Return the level 1 index object for some txgs."""
    merger = RunMerger(1, UUID)
    for at, txg in enumerate(txgs):
        merger.add_txg(at, txg)
        if merger.is_full:
            merger.join()
    return merger.finish()


def of_runs(runs: Sequence[HistoryIndex | None]) -> HistoryIndex:
    """Return the level 2 index object for some runs, which are added in reverse order."""
    merger = RunMerger(2, UUID)
    for at, run in reversed(list(enumerate(runs))):
        merger.add_run(at, run)
        if merger.is_full:
            merger.join()
    return merger.finish()


def run_of(number: int, changed: dict[int, ChangedRows]) -> HistoryIndex:
    """Return the index object of a run; *changed* maps positions in the run to changed inodes."""
    first = number * RUN + 1
    empty = ChangedRows(set(), set(), set())
    return of_txgs([txg_changes(first + at, changed.get(at, empty)) for at in range(RUN)])


def rows(
    *content: int, other: tuple[int, ...] = (), names: tuple[LostName, ...] = ()
) -> ChangedRows:
    """Return the changed rows of a txg."""
    return ChangedRows({Ino(ino) for ino in content}, {Ino(ino) for ino in other}, set(names))


def test_index_object_has_one_bit_for_each_changed_txg() -> None:
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


def test_index_object_of_level_2_has_one_bit_for_each_changed_level_1_object() -> None:
    runs = [run_of(number, {}) for number in range(RUN)]
    runs[2] = run_of(2, {1: rows(5, names=(GONE,)), 9: rows(5)})
    runs[30] = run_of(30, {4: rows(5, other=(5,), names=(GONE,))})
    made = of_runs(runs)

    assert list(made.inodes) == [ChangedInode(Ino(5), 1 << 2 | 1 << 30, 1 << 30)]
    assert list(made.names) == [RemovedName(*GONE, 1 << 2 | 1 << 30)]
    assert (made.level, made.first, made.last) == (2, 1, RUN * RUN)
    assert (made.previous, made.hash) == (runs[0].previous, runs[-1].hash)


def test_index_of_many_changes_equals_the_union_of_the_changes_of_its_txgs() -> None:
    rnd = random.Random(1)
    names = [LostName(Ino(at % 3), b"%x" % (at % 5000), Cookie(0), Ino(at)) for at in range(9000)]
    changed = {
        at: ChangedRows(
            {Ino(ino) for ino in rnd.sample(range(1, 20_000), 7000)},
            {Ino(ino) for ino in rnd.sample(range(1, 20_000), 50)},
            set(rnd.sample(names, 4500)),
        )
        for at in (0, 4, 5, 31)
    }
    content: Counter[Ino] = Counter()
    other: Counter[Ino] = Counter()
    masks: Counter[LostName] = Counter()
    for at, one in changed.items():
        content.update(dict.fromkeys(one.content, 1 << at))
        other.update(dict.fromkeys(one.other, 1 << at))
        masks.update(dict.fromkeys(one.names, 1 << at))

    made = run_of(0, changed)

    inos = sorted({*content, *other})
    assert list(made.inodes) == [ChangedInode(ino, content[ino], other[ino]) for ino in inos]
    assert list(made.names) == [RemovedName(*name, masks[name]) for name in sorted(masks)]


def test_unknown_changes_are_marked_in_all_higher_index_levels() -> None:
    empty = [txg_changes(txg, rows()) for txg in range(1, RUN + 1)]
    first = of_txgs([*empty[:6], txg_changes(7, None), None, *empty[8:]])
    assert first.unknown == 0b1100_0000

    made = of_runs([first, None, *(run_of(number, {}) for number in range(2, RUN))])
    assert made.unknown == 0b11


def test_index_cannot_be_built_from_txgs_that_do_not_form_a_chain() -> None:
    txgs = [txg_changes(txg, rows()) for txg in range(1, RUN + 1)]
    for wrong in (
        [*txgs[:4], txgs[4]._replace(previous=content_hash(b"x")), *txgs[5:]],
        [None, *txgs[1:]],
        [*txgs[:-1], None],
    ):
        with pytest.raises(FormatError):
            of_txgs(wrong)
    with pytest.raises(FormatError):
        of_runs([run_of(0, {}), run_of(0, {}), *(run_of(at, {}) for at in range(2, RUN))])


def test_merge_of_a_large_run_fails_before_all_changes_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_runs, "HISTORY_INODES_MAX", 6)
    merger = RunMerger(1, UUID)
    parts = [rows(5, 6, 7, other=(5,)), rows(5, 6, 7), rows(5, 8), rows(*range(9, 16))]
    is_full = []
    for at, part in enumerate(parts):
        merger.add_txg(at, txg_changes(at + 1, part))
        is_full.append(merger.is_full)
        if at == 2:
            merger.join()  # The run changes four different inodes.
    assert is_full == [False, False, True, True]
    with pytest.raises(TooManyChangesError):
        merger.join()


def test_repeated_merges_of_changes_keep_the_bits_of_all_txgs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = {at: rows(5, 6, other=(6, 7), names=(GONE,)) for at in range(RUN)}
    expected = run_of(0, changed)
    monkeypatch.setattr(index_runs, "HISTORY_INODES_MAX", 3)
    monkeypatch.setattr(index_runs, "HISTORY_NAMES_MAX", 1)

    assert run_of(0, changed) == expected
    assert [row.content for row in expected.inodes] == [ALL_BITS, ALL_BITS, 0]
    assert [row.mask for row in expected.names] == [ALL_BITS]
