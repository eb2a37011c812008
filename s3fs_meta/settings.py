"""The parsed mount options (``-o``), as one frozen value.

Owns: the value, its defaults, parsing of fstab-style strings, words that are no options of ours.
Does not know: the command line around it, SQLite (``meta.db.pragmas`` checks what its values can
be), the codec (``codec.compression`` knows its methods).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import (
    CACHE_BYTES_DEFAULT,
    COMMIT_INTERVAL_S_DEFAULT,
    IMAGE_INTERVAL_S_DEFAULT,
    POLL_INTERVAL_S_DEFAULT,
    READ_TIMEOUT_S_DEFAULT,
    SYNC_INTERVAL_S_DEFAULT,
    WRITE_TIMEOUT_S_DEFAULT,
)
from s3fs_meta.model import AccessTime, Mark, Moment
from s3fs_meta.option_syntax import nearest
from s3fs_meta.option_table import BY_WORD, Option

# Options of fstab(5) and mount(8) that are meant for other programs, or ask for the only behaviour.
IGNORED_WORDS: Final = frozenset(
    {
        "_netdev",
        "acl",
        "async",
        "auto",
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

# Options of other filesystems that are refused with a specific reason.
REFUSED_WORDS: Final[Mapping[str, str]] = {
    "remount": "mount -o remount,ro MOUNTPOINT and remount,rw are for mount(8); other options are"
    " changed by unmounting and mounting again",
    "iversion": "inodes have no version that counts their changes",
    "lazytime": "times are not kept in memory for longer than the rest; noatime writes fewer",
    "mand": "Linux has no mandatory locks any more",
    "noacl": "ACLs cannot be switched off",
    "norelatime": "write strictatime for every access, or noatime for none",
    "nosymfollow": "symbolic links are followed",
    "nouser_xattr": "extended attributes cannot be switched off",
    "sync": "writes are not made synchronous; fsync(2) is a promise, and commit= bounds the rest",
    "dirsync": "changes of directories are not made synchronous; fsync(2) of one is a promise",
}


# MountOptions has every field of the slices below, so it is passed where a part takes its slice; the
# name and the default of an option are written there alone.


@dataclass(frozen=True)
class CacheOptions:
    """The slice of the block cache."""

    cache_bytes: int = CACHE_BYTES_DEFAULT
    read_timeout_s: float = READ_TIMEOUT_S_DEFAULT
    write_timeout_s: float = WRITE_TIMEOUT_S_DEFAULT


@dataclass(frozen=True)
class SessionOptions(CacheOptions):
    """The slice of everything between the database and the bucket."""

    compression: str = "zstd-1"
    commit_interval_s: float = COMMIT_INTERVAL_S_DEFAULT
    sync_interval_s: float = SYNC_INTERVAL_S_DEFAULT
    image_interval_s: float = IMAGE_INTERVAL_S_DEFAULT
    poll_interval_s: float = POLL_INTERVAL_S_DEFAULT
    fsync: str = "local"  # or "remote": it waits for the bucket
    follow: bool = False


@dataclass(frozen=True)
class FilesystemOptions:
    """The slice of the POSIX semantics."""

    access_time: AccessTime = AccessTime.RELATIVE
    directory_times: bool = True
    allow_other: bool = False  # several users may use it


@dataclass(frozen=True)
class MountOptions(SessionOptions, FilesystemOptions):
    """Every option of a mount. None: as the documentation of the option says."""

    # SQLite
    journal_mode: str = "wal"
    synchronous: str = "normal"
    page_size: int | None = None
    cache_size: int | None = None  # as SQLite's pragma: pages, or -KiB
    mmap_size_bytes: int = 0
    wal_autocheckpoint: int = 0  # pages
    journal_size_limit_bytes: int | None = None
    temp_store: str = "memory"
    # local state
    cachedir: Path | None = None
    # data
    capacity_bytes: int | None = None
    # mount
    read_only: bool = False
    at: Moment | None = None
    at_least: Mark | None = None
    nodev: bool = True
    nosuid: bool = True
    noexec: bool = False
    uid: int | None = None
    gid: int | None = None
    umask: int | None = None
    request_loop: str | None = None  # without effect: option_table.WITHOUT_EFFECT
    extension: str | None = None
    # bucket
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    passphrase_file: Path | None = None
    unsafe_single_writer: bool = False
    force_takeover: bool = False


class GivenOption(NamedTuple):
    """One option of a ``-o`` string."""

    text: str  # as written by the user
    value: Any


def shown_value(value: object) -> str:
    """Return a value of MountOptions as text: equal for values that mean the same."""
    if isinstance(value, Moment):
        return value.text
    return str(value.resolve()) if isinstance(value, Path) else str(value)


def split_options(text: str) -> list[str]:
    r"""Return the comma-separated parts of one ``-o`` string; ``\,`` is a comma, ``\\`` itself."""
    parts = re.findall(r"(?:\\.|[^,\\])+|\\$", text)
    return [re.sub(r"\\(.)", r"\1", part).strip() for part in parts]


def parse_mount_options(texts: Sequence[str]) -> MountOptions:
    """Return the options of all ``-o`` strings; of contrary words the last one counts.

    Raises:
        UsageError: unknown word, missing or needless value, value out of range, or words that
            contradict each other.
    """
    values = {field: one.value for field, one in given_options(texts).items()}
    options = MountOptions(**values)
    _check_together(options)
    return options


def given_options(texts: Sequence[str]) -> dict[str, GivenOption]:
    """Return the options that are given, by field of MountOptions; of contrary words the last.

    Raises:
        UsageError: unknown word, missing or needless value, value out of range.
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


def _find(word: str) -> Option:
    if word in REFUSED_WORDS:
        raise UsageError(f"option {word!r}: {REFUSED_WORDS[word]}")
    option = BY_WORD.get(word)
    if option is None:
        raise UsageError(f"unknown mount option {word!r}{nearest(word, list(BY_WORD))}")
    return option


def _check_together(options: MountOptions) -> None:
    if options.at is not None and options.force_takeover:
        raise UsageError("at and takeover contradict each other: an older state has no writer")
    if options.at is not None and options.follow:
        raise UsageError("at and follow contradict each other: an older state never changes")
    if options.at is not None and options.page_size is not None:
        raise UsageError(
            "at and page_size contradict each other: an older state cannot be converted"
        )
    if options.read_only and options.force_takeover:
        raise UsageError("ro and takeover contradict each other: a reader needs no lease")
    if options.follow and not options.read_only:
        raise UsageError("follow needs ro: a follower does not write")
    if options.follow and options.journal_mode != "wal":
        raise UsageError(f"follow needs journal_mode=wal, not {options.journal_mode}")
    if options.read_only and options.page_size is not None:
        raise UsageError("ro and page_size contradict each other: a conversion writes")
    if options.wal_autocheckpoint and options.journal_mode != "wal":
        raise UsageError(f"wal_autocheckpoint needs journal_mode=wal, not {options.journal_mode}")
