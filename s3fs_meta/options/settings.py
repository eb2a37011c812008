"""The parsed mount options (``-o``) as one immutable value.

Owns: the value, the part of it that each component uses, the parser of fstab-style strings, and the
list of other programs' options, which are ignored or refused.
Does not know: defaults (``option_table``), the command line, the values that SQLite accepts
(``meta.db.pragmas``), the methods of compression (``codec.compression``).
"""

import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.errors import UsageError
from s3fs_meta.model import AbbreviatedLink, AccessTime, PointInTime
from s3fs_meta.options.listen_address import Address
from s3fs_meta.options.option_row import Option
from s3fs_meta.options.option_syntax import nearest
from s3fs_meta.options.option_table import BY_WORD, default_of
from s3fs_meta.options.rate_limit import RateLimit

# Options that a mount ignores: other programs use them, or every mount behaves as they require.
IGNORED_WORDS: Final = frozenset(
    {
        "_netdev",
        "acl",
        "async",
        "auto",
        "default_permissions",  # every mount uses this option
        "defaults",
        "group",
        "loud",
        "noauto",
        "nofail",
        "noiversion",
        "nolazytime",
        "nomand",
        "nouser",
        "owner",
        "silent",
        "symfollow",
        "user",
        "user_xattr",
        "users",
    }
)
IGNORED_PREFIXES: Final = ("x-", "X-", "comment=")

# Options of other filesystems that a mount rejects, each with the reason.
REFUSED_WORDS: Final[Mapping[str, str]] = {
    "remount": "mount -o remount,ro MOUNTPOINT and remount,rw are for mount(8); other options are"
    " changed by unmounting and mounting again",
    "iversion": "inodes have no version that counts their changes",
    "lazytime": "times are not kept in memory longer than other changes; noatime writes fewer",
    "mand": "Linux no longer has mandatory locks",
    "noacl": "ACLs cannot be switched off",
    "norelatime": "write strictatime for every access, or noatime for none",
    "nosymfollow": "symbolic links are followed",
    "nouser_xattr": "extended attributes cannot be switched off",
    "sync": "writes cannot be made synchronous; fsync(2) makes them durable, and commit= limits"
    " how much is lost without it",
    "dirsync": "changes of directories cannot be made synchronous; fsync(2) makes them durable",
}


# MountOptions inherits from all classes below, so that it can be passed instead of any of them.


@dataclass(frozen=True)
class CacheOptions:
    """The options of the block cache."""

    cache_bytes: int = default_of("cache_bytes")
    read_timeout_s: float = default_of("read_timeout_s")
    write_timeout_s: float = default_of("write_timeout_s")
    upload_limit: RateLimit = default_of("upload_limit")
    download_limit: RateLimit = default_of("download_limit")


@dataclass(frozen=True)
class SessionOptions(CacheOptions):
    """The options of uploads, changelogs, images and followers."""

    compression: str = default_of("compression")
    commit_interval_s: float = default_of("commit_interval_s")
    sync_interval_s: float = default_of("sync_interval_s")
    image_interval_s: float = default_of("image_interval_s")
    poll_interval_s: float = default_of("poll_interval_s")
    fsync: str = default_of("fsync")  # with "remote", fsync(2) waits for the bucket
    follow: bool = default_of("follow")


@dataclass(frozen=True)
class FilesystemOptions:
    """The options that affect the POSIX semantics."""

    access_time: AccessTime = default_of("access_time")
    directory_times: bool = default_of("directory_times")
    allow_other: bool = default_of("allow_other")  # True if other users may access the mount


@dataclass(frozen=True)
class SqliteOptions:
    """The settings of SQLite that apply to any database."""

    journal_mode: str = default_of("journal_mode")
    synchronous: str = default_of("synchronous")
    cache_size: int | None = default_of("cache_size")  # number of pages, or of KiB if negative
    mmap_size: int = default_of("mmap_size")
    wal_autocheckpoint: int = default_of("wal_autocheckpoint")  # size of the WAL in pages
    temp_store: str = default_of("temp_store")


@dataclass(frozen=True)
class KernelOptions:
    """The mount options for the kernel."""

    read_only: bool = default_of("read_only")
    allow_other: bool = default_of("allow_other")
    nodev: bool = default_of("nodev")
    nosuid: bool = default_of("nosuid")
    noexec: bool = default_of("noexec")


@dataclass(frozen=True)
class MountOptions(SessionOptions, FilesystemOptions, SqliteOptions, KernelOptions):
    """All options of a mount; an option without a value and without a default is None."""

    # mount options of SQLite
    page_size: int | None = default_of("page_size")
    journal_size_limit_bytes: int | None = default_of("journal_size_limit_bytes")
    # mount options of the local state
    cachedir: Path | None = default_of("cachedir")
    # mount options of file data
    capacity_bytes: int | None = default_of("capacity_bytes")
    # mount options of access and display
    at: PointInTime | None = default_of("at")
    at_least: AbbreviatedLink | None = default_of("at_least")
    metrics: Address | None = default_of("metrics")
    snapdir: str = default_of("snapdir")
    uid: int | None = default_of("uid")
    gid: int | None = default_of("gid")
    umask: int | None = default_of("umask")
    # Options that are accepted without effect (option_table.WITHOUT_EFFECT).
    request_loop: str | None = default_of("request_loop")
    extension: str | None = default_of("extension")
    # mount options of the bucket
    endpoint_url: str | None = default_of("endpoint_url")
    region: str | None = default_of("region")
    profile: str | None = default_of("profile")
    passphrase_file: Path | None = default_of("passphrase_file")
    unsafe_single_writer: bool = default_of("unsafe_single_writer")
    force_takeover: bool = default_of("force_takeover")


class GivenOption(NamedTuple):
    """One option of a ``-o`` string."""

    text: str  # the option as the user typed it
    value: Any


def shown_value(value: object) -> str:
    """Return an option's value as text; values with the same meaning have equal texts."""
    if isinstance(value, PointInTime):
        return value.text
    return os.path.realpath(value) if isinstance(value, Path) else str(value)


def split_options(text: str) -> list[str]:
    r"""Return the comma-separated parts of a ``-o`` string; ``\,`` is a comma, ``\\`` is ``\``."""
    parts = re.findall(r"(?:\\.|[^,\\])+|\\$", text)
    return [re.sub(r"\\(.)", r"\1", part).strip() for part in parts]


def parse_mount_options(texts: Sequence[str]) -> MountOptions:
    """Return the options of all ``-o`` strings; a later option overrides an earlier one.

    Raises:
        UsageError: an option is unknown, its value is missing, unexpected or out of range, or
            options contradict each other.
    """
    values = {field: one.value for field, one in given_options(texts).items()}
    options = MountOptions(**values)
    check_together(options)
    return options


def given_options(texts: Sequence[str]) -> dict[str, GivenOption]:
    """Return the given options, keyed by field name; a later option overrides an earlier one.

    Raises:
        UsageError: an option is unknown, or its value is missing, unexpected or out of range.
    """
    found: dict[str, GivenOption] = {}
    for text in texts:
        for part in split_options(text):
            word, equals, value = part.partition("=")
            if not word or word in IGNORED_WORDS or part.startswith(IGNORED_PREFIXES):
                continue
            option = _find(word)
            if bool(option.takes) != bool(equals):
                how = f"{word}={option.takes}" if option.takes else word
                raise UsageError(f"option {part!r}: write {how}")
            found[option.field] = GivenOption(part, option.parse(word, value))
    return found


def option_texts(options: MountOptions, without: Container[str] = ()) -> list[str]:
    r"""Return the options whose values differ from the defaults, as parts of a ``-o`` string.

    Args:
        options: the options of a mount.
        without: fields to omit.
    """
    found = []
    for field, default in ((one.name, one.default) for one in fields(MountOptions)):
        value = getattr(options, field)
        if value != default and field not in without:
            rows = (row for row in BY_WORD.values() if row.field == field)
            found += [text for row in rows for text in _written(row, value)][:1]
    return [text.replace("\\", "\\\\").replace(",", "\\,") for text in found]


def _written(row: Option, value: object) -> Iterator[str]:
    """Yield ``-o`` parts that set the option of *row* to *value*."""
    if not row.takes:
        if row.parse(row.word, "") == value:
            yield row.word
        return
    for text in (shown_value(value), f"{value:o}" if isinstance(value, int) else ""):
        with suppress(UsageError):
            if shown_value(row.parse(row.word, text)) == shown_value(value):
                yield f"{row.word}={text}"


def _find(word: str) -> Option:
    if word in REFUSED_WORDS:
        raise UsageError(f"option {word!r}: {REFUSED_WORDS[word]}")
    option = BY_WORD.get(word)
    if option is None:
        advice = (
            nearest(word, list(BY_WORD)) or "; s3fs-meta mount --list-options lists all options"
        )
        raise UsageError(f"unknown mount option {word!r}{advice}")
    return option


def check_together(options: MountOptions) -> None:
    """Raise UsageError if one option contradicts another option."""
    if options.at is not None and options.force_takeover:
        raise UsageError("at and takeover cannot be combined: a past point in time has no writer")
    if options.at is not None and options.follow:
        raise UsageError("at and follow cannot be combined: a past point in time never changes")
    if options.at is not None and options.page_size is not None:
        raise UsageError(
            "at and page_size cannot be combined: a past point in time cannot be converted"
        )
    if options.read_only and options.force_takeover:
        raise UsageError("ro and takeover cannot be combined: a read-only mount needs no lease")
    if options.follow and not options.read_only:
        raise UsageError("follow needs ro, because a follower does not write")
    if options.follow and options.journal_mode != "wal":
        raise UsageError(f"follow needs journal_mode=wal, not {options.journal_mode}")
    if options.read_only and options.page_size is not None:
        raise UsageError("ro and page_size cannot be combined: a conversion writes to the database")
    if options.wal_autocheckpoint and options.journal_mode != "wal":
        raise UsageError(f"wal_autocheckpoint needs journal_mode=wal, not {options.journal_mode}")
