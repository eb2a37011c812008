"""Candidates for shell completion: mount options and values, mountpoints, points in time.

Owns: the candidates. Does not know: shells (``contrib.docs.reference`` writes their scripts).
Keeps: only the mount table and small files of the local state are read. No request is sent to a
bucket or a daemon, because the shell waits for the candidates.
"""

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from s3fs_meta.cli.limits import COMPLETED_POINTS_MAX, COMPLETED_STATES_MAX
from s3fs_meta.limits import PAGE_BYTES_MAX, PAGE_BYTES_MIN
from s3fs_meta.model import NEWEST
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.options.option_row import Option
from s3fs_meta.options.option_syntax import (
    OneOf,
    format_time,
    page_size,
    point_in_time,
    point_of_txg,
)
from s3fs_meta.options.option_table import OPTIONS, WITHOUT_EFFECT

if TYPE_CHECKING:
    from s3fs_meta.sync.known_points import Known

# A shell's completion script sets this environment variable to request candidates.
VARIABLE: Final = "_S3FS_META_COMPLETE"
# Variables that contain the command line: bash sets the first, zsh and fish set the second.
_LINES: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
# A comma separates two options; a comma in a value is escaped.
_COMMA: Final = re.compile(r"(?<!\\),")
_CHANGEABLE: Final = ("cachesize", "upload_limit", "download_limit")
_TXG: Final = "txg="


class NamedFilesystem(NamedTuple):
    """The filesystem that an incomplete command line names."""

    url: str | None = None
    cachedir: Path | None = None


def typed_arguments(environment: Mapping[str, str]) -> list[str] | None:
    """Return the words of the command line to complete, or None if no shell requests completion."""
    if VARIABLE not in environment:
        return None
    line = next((environment[name] for name in _LINES if name in environment), "")
    return line.split()[1:]


# --- completion of mount options ---------------------------------------------------------------


def mount_options(context: typer.Context, incomplete: str) -> list[str]:
    """Return candidates for ``-o``: the typed text with each possible option or value."""
    return options_after(incomplete, _filesystem(context))


def options_after(incomplete: str, place: NamedFilesystem) -> list[str]:
    """Return the candidates for an incomplete value of ``-o``."""
    parts = _COMMA.split(incomplete)
    before, last = "".join(f"{part}," for part in parts[:-1]), parts[-1]
    word, equals, value = last.partition("=")
    if equals:
        option = next((one for one in OPTIONS if one.word == word), None)
        found = [] if option is None else _values(option, value, place)
        return [f"{before}{word}={one}" for one in found]
    given = {part.partition("=")[0] for part in parts[:-1]}
    return [
        f"{before}{one.word}{'=' if one.takes else ''}"
        for one in OPTIONS
        if one.word.startswith(last) and one.word not in given and one.word not in WITHOUT_EFFECT
    ]


def _values(option: Option, value: str, place: NamedFilesystem) -> list[str]:
    """Return the known values of an option that begin with the text *value*."""
    if isinstance(option.parse, OneOf):
        found = list(option.parse.choices)
    elif option.parse is page_size:
        sizes = itertools.takewhile(PAGE_BYTES_MAX.__ge__, (PAGE_BYTES_MIN << n for n in range(32)))
        found = [str(size) for size in sizes]
    elif option.parse is point_in_time:
        found = times(value, place)
    elif option.parse is point_of_txg:
        found = [text.removeprefix(_TXG) for text in times(_TXG, place)]
    else:
        found = []
    return [one for one in found if one.startswith(value)]


def settings(incomplete: str) -> list[str]:
    """Return the names of settings that ``s3fs-meta set`` changes."""
    return [f"{name}=" for name in _CHANGEABLE if name.startswith(incomplete)]


# --- completion of points in time --------------------------------------------------------------


def points_in_time(context: typer.Context, incomplete: str) -> list[str]:
    """Return points in time that this host has recorded, latest first."""
    return times(incomplete, _filesystem(context))


def kept_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of kept points that this host knows, latest first."""
    known = _known(_filesystem(context))
    names = [] if known is None else reversed(known.kept)
    return [name for name in names if name.startswith(incomplete)]


def _known(place: NamedFilesystem) -> "Known | None":
    # imported late, because most completions need no state
    from s3fs_meta.sync import known_points
    from s3fs_meta.sync.host_state.json_file import NewerFileError

    state = _state(place)
    try:
        return None if state is None else known_points.read(state)
    except (OSError, NewerFileError):
        return None


def times(incomplete: str, place: NamedFilesystem) -> list[str]:
    """Return the known points in time that complete a text.

    If the text begins with a digit, they are clock times; otherwise names and txgs.
    """
    known = _known(place)
    if known is None:
        return []
    points = list(reversed(known.points))[:COMPLETED_POINTS_MAX]
    if incomplete[:1].isdigit():
        found = [format_time(one.time_ns) for one in points]
    else:
        kept = list(reversed(known.kept))[:COMPLETED_POINTS_MAX]
        found = [NEWEST.text, *kept, *(f"{_TXG}{one.txg}" for one in points)]
    return [one for one in found if one.startswith(incomplete)]


def _filesystem(context: typer.Context) -> NamedFilesystem:
    given = context.params
    cachedir = given.get("cachedir")
    url = given.get("url") or _url_at(str(given.get("target") or given.get("source") or ""))
    return NamedFilesystem(url, None if cachedir is None else Path(cachedir))


def _url_at(target: str) -> str | None:
    """Return a URL unchanged; for a path, return the URL of its mount, or None without a mount.

    The path itself is not accessed, because an access would block if the daemon hangs.
    """
    if not target or "://" in target:
        return target or None
    path = Path(os.path.abspath(target))
    found = [
        one
        for one in mount_table.read()
        if one.fs_type == mount_table.FS_TYPE and path.is_relative_to(one.mountpoint)
    ]
    deepest = max(found, key=lambda one: len(one.mountpoint), default=None)
    return None if deepest is None else targets.unquoted(deepest.source)


def _state(place: NamedFilesystem) -> Path | None:
    """Return the state directory of a URL or, without a URL, of the only filesystem; else None."""
    cachedir = place.cachedir or targets.own_cachedir()
    if place.url is not None:
        return targets.of_url(place.url, cachedir).state
    found = list(itertools.islice(cachedir.glob("*/points.json"), COMPLETED_STATES_MAX))
    return found[0].parent if len(found) == 1 else None


# --- completion of mountpoints -----------------------------------------------------------------


def mountpoints(incomplete: str) -> list[str]:
    """Return the mountpoints of s3fs-meta that begin with an absolute or relative path."""
    found = [one.mountpoint for one in mount_table.read() if one.fs_type == mount_table.FS_TYPE]
    if not incomplete:
        return found
    above, slash, name = incomplete.rpartition("/")
    # Completion never accesses a mounted filesystem: the access would block if the daemon hangs.
    directory = os.path.abspath(above + slash).rstrip("/") + "/"
    return [
        f"{above}{slash}{one.removeprefix(directory)}"
        for one in found
        if one.startswith(directory + name)
    ]
