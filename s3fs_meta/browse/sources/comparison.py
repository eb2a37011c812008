"""Comparisons of two points in time, and of two versions of a text file.

Owns: the bounds of both comparisons, rows of texts side by side. Does not know: pages.
"""

import difflib
import stat
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.browse.limits import BROWSE_CHANGED_MAX, BROWSE_COMPARED_NAMES_MAX, BROWSE_LINES_MAX
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.tables import inodes
from s3fs_meta.meta.trees.tree_diff import Difference, TreeDiff
from s3fs_meta.model import Ino, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.versions.changed_between import changed_between
from s3fs_meta.sync.progress import no_progress

_PIECE_INODES: Final = 100  # number of inodes looked up before other tasks may run
# Only one comparison of texts runs at a time, because hostile texts can make it very slow.
_ONE: Final = trio.CapacityLimiter(1)


class Row(NamedTuple):
    """One row of two texts side by side; the number of a missing line is None."""

    kind: str  # kind of the row: equal, changed, removed, added or skipped
    old_number: int | None
    old: str
    new_number: int | None
    new: str


async def differences(source: Source, before: Txg, top: bytes) -> list[Difference] | None:
    """Return the changes below a path between a txg and the newest txg, sorted by path.

    Returns:
        None if the changes are unknown or exceed a limit: BROWSE_CHANGED_MAX files, or
        BROWSE_COMPARED_NAMES_MAX names in the directories of the files.

    Raises:
        StoreError, PastUnavailableError: the state at one of the txgs cannot be read.
    """
    newest = (await source.bounds()).newest
    compare = partial(_differences, source, before, newest)
    every = await source.compared.of((before, newest), compare)
    if every is None:
        return None
    found: list[Difference] = []
    for number, one in enumerate(every):
        if number % _PIECE_INODES == 0:
            await trio.lowlevel.checkpoint()
        if one.is_below(top):
            found.append(one)
    return found


async def _differences(source: Source, before: Txg, newest: Link) -> list[Difference] | None:
    """Return the changes in the complete tree, in the form that ``differences`` returns."""
    search = await source.search()
    changed = await changed_between(search, source.changelogs, before, newest.txg, no_progress)
    if changed is None or len(changed) > BROWSE_CHANGED_MAX:
        return None
    async with source.used(before) as old, source.used(newest.txg) as new:
        names = [await names_in(point, changed) for point in (old, new)]
        if max(names) > BROWSE_COMPARED_NAMES_MAX:
            return None
        found: list[Difference] = []
        for one in TreeDiff(old.db, new.db).steps(changed):
            if one is not None:
                found.append(one)
            await trio.lowlevel.checkpoint()
    return sorted(found)


async def names_in(point: OpenPoint, changed: Iterable[Ino]) -> int:
    """Return the number of names that a comparison of the inodes' directories must read."""
    directories: dict[Ino, int] = {}
    for number, ino in enumerate(changed):
        if number % _PIECE_INODES == 0:
            await trio.lowlevel.checkpoint()
        found = inodes.find(point.db, ino)
        if found is not None and not stat.S_ISDIR(found.mode):
            found = inodes.find(point.db, found.parent)
        while found is not None and stat.S_ISDIR(found.mode) and found.ino not in directories:
            directories[found.ino] = found.size_bytes
            found = inodes.find(point.db, found.parent)
    return sum(directories.values())


async def side_by_side(old: str, new: str) -> list[Row]:
    """Return the lines of two texts side by side; only BROWSE_LINES_MAX lines are compared."""
    return await in_thread(_rows, old, new, abandon_on_cancel=True, limiter=_ONE)


def omits_lines(old: str, new: str) -> bool:
    """Return whether ``side_by_side`` does not compare all lines of two different texts."""
    return old != new and any(len(text.splitlines()) > BROWSE_LINES_MAX for text in (old, new))


def without_rows(old: str, new: str, *, is_cut: bool) -> str:
    """Return the text for a comparison that found no difference in the compared lines.

    Args:
        old: the beginning of the earlier text.
        new: the beginning of the later text.
        is_cut: whether one of the texts continues after the compared lines.
    """
    if is_cut:
        return "The beginnings are equal; download both versions to compare the rest."
    if old != new:
        return "The versions differ only in the characters at the ends of lines."
    return "The versions are equal."


def _rows(old: str, new: str) -> list[Row]:
    before, after = (text.splitlines()[:BROWSE_LINES_MAX] for text in (old, new))
    matcher = difflib.SequenceMatcher(None, before, after)
    rows: list[Row] = []
    for number, group in enumerate(matcher.get_grouped_opcodes()):
        if number:
            rows.append(Row("skipped", None, "", None, ""))
        for tag, first, stop, other_first, other_stop in group:
            count = max(stop - first, other_stop - other_first)
            rows += [
                _row(
                    tag,
                    (first + at, before) if first + at < stop else None,
                    (other_first + at, after) if other_first + at < other_stop else None,
                )
                for at in range(count)
            ]
    return rows


def _row(tag: str, old: tuple[int, list[str]] | None, new: tuple[int, list[str]] | None) -> Row:
    kind = "equal" if tag == "equal" else "changed"
    if new is None:
        kind = "removed"
    if old is None:
        kind = "added"
    return Row(
        kind,
        None if old is None else old[0] + 1,
        "" if old is None else old[1][old[0]],
        None if new is None else new[0] + 1,
        "" if new is None else new[1][new[0]],
    )
