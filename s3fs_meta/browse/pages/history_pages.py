"""The pages about history: the time line, versions of a file, comparisons, changes.

Owns: the values of these pages. Does not know: HTML, how the history is searched.
"""

import re
import stat
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from s3fs_meta.browse.limits import (
    BROWSE_CHANGES_SHOWN_MAX,
    BROWSE_SINCE_SHOWN,
    BROWSE_TEXT_BYTES_MAX,
    BROWSE_VERSIONS_MAX,
)
from s3fs_meta.browse.page_server import page
from s3fs_meta.browse.pages import preview
from s3fs_meta.browse.pages.time_plot import Plot
from s3fs_meta.browse.pages.wanted import Wanted, WrongAddressError, common
from s3fs_meta.browse.sources import comparison, source
from s3fs_meta.browse.sources import time_line as runs
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.browse.templates import Render
from s3fs_meta.meta.tables import inodes
from s3fs_meta.meta.trees import tree_diff
from s3fs_meta.model import Ino, Txg
from s3fs_meta.mount.http_server import Reply
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.versions.path_versions import PathVersions, Version

_BAR: Final = 100  # length of a plot's longest bar
_VERSION: Final = re.compile("([0-9]{1,18})(?:-([0-9]{1,18}))?")


async def time_line(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with the time line or a part of the time line."""
    bounds = await site.bounds()
    first = Txg(max(wanted.number("first", bounds.oldest.txg), bounds.oldest.txg))
    last = Txg(min(wanted.number("last", bounds.newest.txg), bounds.newest.txg))
    if first > last:
        raise WrongAddressError("the address names no transaction group that is retained")
    found = await runs.runs_of(site, first, last)
    kept = await site.kept.all()
    kept_in = runs.kept_in(found, kept.points)
    most = max([run.changed or 0 for run in found])
    text = render(
        "time_line.html",
        label=site.label,
        oldest=bounds.oldest,
        newest=bounds.newest,
        is_part=(first, last) != (bounds.oldest.txg, bounds.newest.txg),
        days=runs.by_day(found),
        gaps=runs.gaps(found),
        kept=kept,
        kept_in=kept_in,
        plot=Plot(found, kept_in),
        moves=runs.moves(first, last, bounds.oldest.txg, bounds.newest.txg),
        share=lambda run: _BAR * (run.changed or 0) // max(most, 1),
    )
    return page(text)


async def versions(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with the versions of a file; the file may have been removed."""
    bounds = await site.bounds()
    async with site.used(bounds.newest.txg) as point:
        search = await site.search()
        finder = PathVersions(point.db, search, site.changelogs, bounds.oldest.txg, bounds.newest)
        found = await finder.of_path(wanted.names, BROWSE_VERSIONS_MAX, attributes=False)
    values = await common(site, wanted, bounds.newest)
    text = render(
        "versions.html",
        **values,
        versions=found.found,
        chosen=_chosen(found.found),
        is_complete=found.is_complete,
        is_directory=any(one.mode and stat.S_ISDIR(one.mode) for one in found.found),
    )
    return page(text)


def _chosen(found: Sequence[Version]) -> dict[str, Any]:
    """Return the versions that can be compared, and the two versions selected by default."""
    unusable = {"removed", "unknown"}
    possible = [one for one in found if not unusable & set(one.changes)]
    return {"possible": possible, "new": possible[:1], "old": possible[:2][-1:]}


class _Side(NamedTuple):
    """One of the two versions of a file that a page compares."""

    link: Link
    path: bytes  # path of the file at the time of this version
    text: str | None  # beginning of the content; None if the content is binary
    is_cut: bool  # True if the content continues after the beginning


async def compare(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with two versions of a text file side by side."""
    chosen = sorted((_version(wanted, "old"), _version(wanted, "new")))
    old, new = [await _side(site, wanted, *one) for one in chosen]
    rows, result = None, ""
    is_cut = old.is_cut or new.is_cut
    if old.text is not None and new.text is not None:
        rows = await comparison.side_by_side(old.text, new.text)
        is_cut |= comparison.omits_lines(old.text, new.text)
        result = comparison.without_rows(old.text, new.text, is_cut=is_cut)
    values = await common(site, wanted, new.link)
    return page(
        render("compare.html", **values, old=old, new=new, rows=rows, result=result, is_cut=is_cut)
    )


def _version(wanted: Wanted, field: str) -> tuple[Txg, Ino]:
    """Return the txg and the inode in a field such as 42-7; the inode is 0 if it is missing."""
    found = _VERSION.fullmatch(wanted.query.get(field, ""))
    if found is None:
        raise WrongAddressError(f"the parameter {field} must be TXG or TXG-INODE, for example 42-7")
    return Txg(int(found[1])), Ino(int(found[2] or 0))


async def _side(site: Source, wanted: Wanted, txg: Txg, ino: Ino) -> _Side:
    async with site.used(txg) as point:
        names = source.path_of(point, ino) if ino else wanted.names
        found = inodes.get(point.db, ino) if ino else source.find(point, names)
        if not stat.S_ISREG(found.mode):
            raise WrongAddressError("only regular files can be compared")
        begin = await source.beginning(point, found, BROWSE_TEXT_BYTES_MAX)
        is_cut = found.size_bytes > BROWSE_TEXT_BYTES_MAX
        text = preview.text_of(begin, is_cut=is_cut)
        return _Side(point.volume.link, b"/".join(names), text, is_cut)


async def changes(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with the changes between a point in time and the newest state."""
    return await _differences(site, render, wanted, "changes.html", BROWSE_CHANGES_SHOWN_MAX)


async def since(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the short list of changes for the frame beside a folder."""
    return await _differences(site, render, wanted, "since.html", BROWSE_SINCE_SHOWN)


async def _differences(
    site: Source, render: Render, wanted: Wanted, template: str, shown_max: int
) -> Reply:
    link = await site.link(wanted.txg)
    found = await comparison.differences(site, link.txg, wanted.path)
    values = await common(site, wanted, link)
    text = render(
        template,
        **values,
        found=None if found is None else found[:shown_max],
        count=0 if found is None else len(found),
        removed=tree_diff.REMOVED,
        below=partial(_below, wanted.path),
    )
    return page(text)


def _below(top: bytes, path: bytes) -> bytes:
    """Return a path relative to *top*; a path that is not below *top* begins with a slash."""
    if path == top:
        return b"."
    if not top or path.startswith(top + b"/"):
        return path.removeprefix(top + b"/")
    return b"/" + path
