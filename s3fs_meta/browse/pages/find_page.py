"""The results of a search by name: entries at a point in time, and a folder's former names.

Owns: matching typed names. Does not know: HTML, the order of the search.
"""

import stat
from typing import Final

import trio

from s3fs_meta.browse.limits import BROWSE_FORMER_NAMES_MAX, BROWSE_FOUND_MAX
from s3fs_meta.browse.page_server import page
from s3fs_meta.browse.pages import folder_pages
from s3fs_meta.browse.pages.wanted import Wanted, WrongAddressError, common
from s3fs_meta.browse.sources import source
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.browse.templates import Render
from s3fs_meta.limits import NAME_BYTES_MAX
from s3fs_meta.meta.tables import dentries
from s3fs_meta.meta.trees.name_search import NameSearch
from s3fs_meta.model import Ino
from s3fs_meta.mount.http_server import Reply
from s3fs_meta.sync.history.versions.path_versions import PathVersions

_ANY: Final = "*?"


async def find(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page with the entries below a folder that match a typed name."""
    text = wanted.query.get("name", "")
    if not text or len(text) > NAME_BYTES_MAX:
        raise WrongAddressError(
            f"type part of a file name to search for, with at most {NAME_BYTES_MAX} characters"
        )
    async with site.used(wanted.txg) as point:
        top = source.find(point, wanted.names)
        if not stat.S_ISDIR(top.mode):
            raise WrongAddressError("this path is not a folder, so it cannot be searched")
        search = NameSearch(point.db, top.ino, _like(text), BROWSE_FOUND_MAX)
        for _ in search.read():
            await trio.lowlevel.checkpoint()
        former, has_all = None, True
        if top.size_bytes <= BROWSE_FORMER_NAMES_MAX:
            names, has_all = await _former_names(site, wanted, _glob(text))
            former = [
                b"/".join([*wanted.names, name])
                for name in names
                if dentries.find(point.db, Ino(top.ino), name) is None
            ]
        values = await common(site, wanted, point.volume.link)
    found = sorted(search.found, key=lambda one: one.path)
    content = render(
        "find.html",
        **values,
        wanted=text,
        found=[folder_pages.described(one.path.split(b"/"), one.attributes) for one in found],
        is_complete=search.is_complete,
        former=former,
        has_all_former=has_all,
    )
    return page(content)


async def _former_names(site: Source, wanted: Wanted, pattern: bytes) -> tuple[list[bytes], bool]:
    """Return present and former names in a folder, and whether the list is complete."""
    bounds = await site.bounds()
    async with site.used(bounds.newest.txg) as point:
        search = await site.search()
        finder = PathVersions(
            point.db,
            search,
            site.changelogs,
            bounds.oldest.txg,
            bounds.newest,
            names_max=BROWSE_FORMER_NAMES_MAX,
        )
        return await finder.names_like(wanted.names, pattern, BROWSE_FORMER_NAMES_MAX)


def _pattern(text: str) -> str:
    """Return the pattern for a typed text; a text without * or ? matches any part of a name."""
    return text if any(one in text for one in _ANY) else f"*{text}*"


def _like(text: str) -> str:
    """Return a pattern for SQL's LIKE, which ignores the case of ASCII letters, from typed text."""
    found = _pattern(text)
    for one in "\\%_":
        found = found.replace(one, "\\" + one)
    return found.replace("*", "%").replace("?", "_")


def _glob(text: str) -> bytes:
    """Return an fnmatch pattern that ignores the case of ASCII letters, from typed text."""
    return "".join(_either(one) for one in _pattern(text)).encode(errors="surrogateescape")


def _either(one: str) -> str:
    if one.isascii() and one.isalpha():
        return f"[{one.lower()}{one.upper()}]"
    return "[[]" if one == "[" else one
