"""The page about used space: the largest folders and files, growth, and bucket contents.

Owns: the choice of parts, the map. Does not know: HTML, how sizes of folders are added up.
"""

import stat
from typing import Any, Final, NamedTuple

import trio

from s3fs_meta.browse.limits import (
    BROWSE_FILES_SHOWN,
    BROWSE_FOLDERS_SHOWN,
    BROWSE_SEARCHED_NAMES_MAX,
)
from s3fs_meta.browse.page_server import page
from s3fs_meta.browse.pages import tree_map
from s3fs_meta.browse.pages.tree_map import Tile
from s3fs_meta.browse.pages.wanted import Wanted, WrongAddressError, common
from s3fs_meta.browse.sources import source
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.browse.templates import Render
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.tables import packs
from s3fs_meta.meta.trees import folder_sizes, tree_paths
from s3fs_meta.meta.trees.folder_sizes import FolderSize, FolderSizes
from s3fs_meta.model import Attributes, Txg
from s3fs_meta.mount.http_server import Reply
from s3fs_meta.mount.statistics.figures import ratio

_WIDTH: Final = 1000.0
_HEIGHT: Final = 440.0
_LABEL_WIDTH: Final = 110.0  # minimum width of a rectangle with a label
_LABEL_HEIGHT: Final = 40.0
# number of label characters that fit into one unit of a rectangle's width
_LABEL_CHARS: Final = 0.085


class Part(NamedTuple):
    """A part of a folder: a subfolder, a large file, or all other files."""

    name: bytes  # name of the folder or file; b"" for all files that are not listed
    path: bytes
    is_folder: bool
    size_bytes: int
    files: int
    more_bytes: int | None  # growth since an earlier point in time; None without a comparison


class Area(NamedTuple):
    """A part of a folder, with its rectangle on the map of used space."""

    part: Part
    tile: Tile
    label: int  # number of characters that fit into the rectangle; 0 for no label


class Grown(NamedTuple):
    """A folder in which files grew, not counting files in subfolders."""

    path: bytes
    more_bytes: int
    own_bytes: int


async def space(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page about the space that a folder uses."""
    before: FolderSizes | None = None
    since: Txg | None = None
    if wanted.query.get("since"):
        async with site.used(Txg(wanted.number("since", 0))) as point:
            before, since = await site.sizes_of(point), point.volume.link.txg
    async with site.used(wanted.txg) as point:
        found = source.find(point, wanted.names)
        if not stat.S_ISDIR(found.mode):
            raise WrongAddressError("this path is not a folder, so it has no folder sizes")
        sizes = await site.sizes_of(point)
        parts = _parts(point, wanted, found, sizes, before)
        values = await common(site, wanted, point.volume.link)
        values |= {
            "size": sizes.of(found.ino),
            "listed": parts,
            "areas": _areas(parts),
            "since": since,
            "grown": [] if before is None else grown(point, sizes, before),
        }
    async with site.used((await site.bounds()).newest.txg) as newest:
        values["bucket"] = await _bucket(newest)
    return page(render("space.html", **values))


def _parts(
    point: OpenPoint,
    wanted: Wanted,
    directory: Attributes,
    sizes: FolderSizes,
    before: FolderSizes | None,
) -> list[Part]:
    """Return the largest folders and files in a directory, and one part for all others, by size."""
    below = sizes.below(directory.ino)
    shown, hidden = below[:BROWSE_FOLDERS_SHOWN], below[BROWSE_FOLDERS_SHOWN:]
    names = folder_sizes.names(point.db, directory.ino, [one.ino for one in shown])
    parts = [
        Part(
            name, _path(wanted, name), True, one.total_bytes, one.total_files, _growth(one, before)
        )
        for one in shown
        if (name := names.get(one.ino)) is not None
    ]
    files: list[tuple[bytes, int]] = []
    if directory.size_bytes <= BROWSE_SEARCHED_NAMES_MAX:
        files = folder_sizes.largest_files(point.db, directory.ino, BROWSE_FILES_SHOWN)
    parts += [Part(name, _path(wanted, name), False, size, 1, None) for name, size in files]
    own = sizes.of(directory.ino)
    others = Part(
        b"",
        b"",
        False,
        sum(one.total_bytes for one in hidden)
        + (own.own_bytes if own else 0)
        - sum(s for _, s in files),
        sum(one.total_files for one in hidden) + (own.own_files if own else 0) - len(files),
        None,
    )
    if others.files > 0:
        parts.append(others._replace(size_bytes=max(others.size_bytes, 0)))
    return sorted(parts, key=lambda one: (-one.size_bytes, one.name))


def _path(wanted: Wanted, name: bytes) -> bytes:
    return b"/".join([*wanted.names, name])


def _growth(size: FolderSize, before: FolderSizes | None) -> int | None:
    if before is None:
        return None
    former = before.of(size.ino)
    return size.total_bytes - (0 if former is None else former.total_bytes)


def _areas(parts: list[Part]) -> list[Area]:
    shown = [one for one in parts if one.size_bytes > 0]
    placed = tree_map.tiles([float(one.size_bytes) for one in shown], _WIDTH, _HEIGHT)
    return [
        Area(one, tile, _label(tile) if one.name else 0)
        for one, tile in zip(shown, placed, strict=True)
    ]


def _label(tile: Tile) -> int:
    fits = tile.width >= _LABEL_WIDTH and tile.height >= _LABEL_HEIGHT
    return int(tile.width * _LABEL_CHARS) if fits else 0


def grown(point: OpenPoint, sizes: FolderSizes, before: FolderSizes) -> list[Grown]:
    """Return the folders whose own files grew most; files in subfolders do not count.

    Folders without a path are omitted: the program is still deleting the tree that contains them.
    """
    found: list[Grown] = []
    for size, more in sizes.grown_since(before, BROWSE_FILES_SHOWN):
        path = tree_paths.bytes_of(point.db.connection, size.ino)
        if path is not None:
            found.append(Grown(path, more, size.own_bytes))
    return found


async def _bucket(newest: OpenPoint) -> dict[str, Any]:
    """Return the sizes of the bucket's content, and the part that only past states need."""
    counters = newest.db.counters
    live = 0
    for within in packs.slices(newest.db):
        live += packs.live_bytes(newest.db, within)
        await trio.lowlevel.checkpoint()
    return {
        "file_bytes": counters.file_bytes,
        "block_bytes": counters.block_bytes,
        "live_bytes": live,
        "stored_bytes": counters.stored_bytes,
        "past_bytes": max(counters.stored_bytes - live, 0),
        "dedup": ratio(counters.file_bytes, counters.block_bytes),
        "compression": ratio(counters.block_bytes, live),
    }
