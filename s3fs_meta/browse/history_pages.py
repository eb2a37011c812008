"""Pages about history: the time line, versions of a file, two versions, what changed since.

Owns: the values of these pages. Does not know: HTML, how the history is searched.
"""

import stat
from typing import Final

from s3fs_meta.browse import comparison, http_server, preview, source
from s3fs_meta.browse import time_line as runs
from s3fs_meta.browse.http_server import Reply
from s3fs_meta.browse.source import Source
from s3fs_meta.browse.templates import Render
from s3fs_meta.browse.wanted import Wanted, WrongAddressError, common, crumbs
from s3fs_meta.limits import (
    BROWSE_CHANGES_SHOWN_MAX,
    BROWSE_TEXT_BYTES_MAX,
    BROWSE_VERSIONS_MAX,
)
from s3fs_meta.meta.trees import tree_diff
from s3fs_meta.model import Txg
from s3fs_meta.sync.history.path_versions import PathVersions

_BAR: Final = 100  # length of the longest bar


async def time_line(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with the time line, or with a part of it."""
    bounds = await site.bounds()
    first = Txg(max(wanted.number("first", bounds.oldest.txg), bounds.oldest.txg))
    last = Txg(min(wanted.number("last", bounds.newest.txg), bounds.newest.txg))
    if first > last:
        raise WrongAddressError("these transaction groups are not retained")
    found = await runs.runs_of(site, first, last)
    most = max([run.changed or 0 for run in found])
    page = render(
        "time_line.html",
        place=site.place.url,
        label=site.label,
        oldest=bounds.oldest,
        newest=bounds.newest,
        is_part=(first, last) != (bounds.oldest.txg, bounds.newest.txg),
        days=runs.by_day(found),
        bar=lambda run: _BAR * (run.changed or 0) // max(most, 1),
    )
    return Reply(http_server.OK, page)


async def versions(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with the versions of a file, which may not exist any more."""
    bounds = await site.bounds()
    async with site.used(bounds.newest.txg) as point:
        search = await site.search()
        finder = PathVersions(point.db, search, site.changelogs, bounds.oldest.txg, bounds.newest)
        found = await finder.of_path(wanted.names, BROWSE_VERSIONS_MAX, attributes=False)
    values = await common(site, wanted, bounds.newest)
    page = render(
        "versions.html",
        **values,
        versions=found.found,
        is_complete=found.is_complete,
        is_directory=any(one.mode and stat.S_ISDIR(one.mode) for one in found.found),
    )
    return Reply(http_server.OK, page)


async def compare(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with two versions of a text side by side."""
    txgs = sorted((Txg(wanted.number("old", 0)), Txg(wanted.number("new", 0))))
    texts: list[str | None] = []
    is_cut = False
    for txg in txgs:
        async with site.used(txg) as point:
            found = source.find(point, wanted.names)
            if not stat.S_ISREG(found.mode):
                raise WrongAddressError("only files are compared")
            begin = await source.beginning(point, found, BROWSE_TEXT_BYTES_MAX)
            is_cut = is_cut or found.size_bytes > BROWSE_TEXT_BYTES_MAX
            texts.append(preview.text_of(begin))
    old, new = texts
    rows = None if old is None or new is None else await comparison.side_by_side(old, new)
    links = [await site.link(txg) for txg in txgs]
    page = render(
        "compare.html",
        place=site.place.url,
        label=site.label,
        path=wanted.path,
        crumbs=crumbs(wanted.names),
        newest=links[1],
        link=links[1],
        old=links[0],
        rows=rows,
        is_cut=is_cut,
    )
    return Reply(http_server.OK, page)


async def changes(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with what changed between a point in time and the newest one."""
    link = await site.link(wanted.txg)
    found = await comparison.differences(site, link.txg, wanted.path)
    values = await common(site, wanted, link)
    page = render(
        "changes.html",
        **values,
        found=None if found is None else found[:BROWSE_CHANGES_SHOWN_MAX],
        count=0 if found is None else len(found),
        removed=tree_diff.REMOVED,
    )
    return Reply(http_server.OK, page)
