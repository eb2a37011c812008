"""The arguments of a page in its URL, and the values that several pages share.

Owns: reading numbers from a query, the commands that restore a file. Does not know: HTTP.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from s3fs_meta.browse.names import is_utf8, shell_word
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.limits import NAME_BYTES_MAX
from s3fs_meta.model import Txg
from s3fs_meta.mount.snapshot_source import Reading
from s3fs_meta.mount.stores import s3_arguments
from s3fs_meta.sync.chain.chain import Link

_NUMBER: Final = re.compile("[0-9]{1,19}")


class WrongAddressError(Exception):
    """The URL of a request is invalid."""


class Wanted(NamedTuple):
    """The arguments of a page: a point in time, a path, and the fields after ``?``."""

    txg: Txg
    names: list[bytes]
    query: Mapping[str, str]

    @property
    def path(self) -> bytes:
        """Return the path of the page's entry, relative to the root of the filesystem."""
        return b"/".join(self.names)

    def number(self, field: str, default: int) -> int:
        """Return the number in a field of the query.

        Raises:
            WrongAddressError: the field is not a number.
        """
        text = self.query.get(field, str(default))
        if not _NUMBER.fullmatch(text):
            raise WrongAddressError(f"the parameter {field} is not a number")
        return int(text)


class Crumb(NamedTuple):
    """A component of an entry's path: a parent directory, or the entry itself."""

    name: bytes
    path: bytes


def crumbs(names: list[bytes]) -> list[Crumb]:
    """Return the directories on a path, and its last component."""
    return [Crumb(name, b"/".join(names[: at + 1])) for at, name in enumerate(names)]


async def common(source: Source, wanted: Wanted, link: Link) -> dict[str, Any]:
    """Return the template values of every page about an entry at a point in time."""
    bounds = await source.bounds()
    return {
        "label": source.label,
        "link": link,
        "newest": bounds.newest,
        "path": wanted.path,
        "crumbs": crumbs(wanted.names),
    }


def commands(source: Source, txg: Txg, path: bytes) -> list[tuple[str, str]]:
    """Return commands that restore an entry, each with an explanation."""
    place = source.place
    found: list[tuple[str, str]] = []
    if place.mounted and place.mountpoint is not None and path:
        mountpoint = os.fsencode(place.mountpoint)
        back = _renamed(os.path.basename(path), txg)
        entries = os.path.join(mountpoint, path), os.path.join(mountpoint, back)
        arguments = [b"s3fs-meta", b"clone", b"--at=txg=%d" % txg, *entries]
        text = " ".join(map(shell_word, arguments))
        found.append(("In the mount, under a new name; nothing is downloaded or replaced:", text))
    arguments = [b"s3fs-meta", b"restore", b"--at", b"txg=%d" % txg, b"--to", b"restored"]
    arguments += [*target_arguments(source.reading), *([_no_option(path)] if path else [])]
    text = " ".join(map(shell_word, arguments))
    found.append(("Into a new directory, on any host:", text))
    return found


def target_arguments(reading: Reading) -> list[bytes]:
    """Return the command arguments with which any host can open a filesystem."""
    return [os.fsencode(word) for word in (*s3_arguments(reading.options), reading.place.url)]


def _renamed(name: bytes, txg: Txg) -> bytes:
    """Return a name for the copy of an entry; a long name is truncated."""
    suffix = b".txg-%d" % txg
    short = name[: NAME_BYTES_MAX - len(suffix)]
    if len(short) < len(name) and is_utf8(name):
        short = short.decode(errors="ignore").encode()
    return short + suffix


def _no_option(path: bytes) -> bytes:
    """Return a path in a form that does not look like an option of a command."""
    return b"./" + path if path.startswith(b"-") else path
