"""The exit statuses of commands, one for each family of error classes.

Owns: the statuses, their meanings, and the table that maps error classes to statuses.
docs/reference/exit-codes.md is generated from this module. The command fsck returns the statuses of
fsck(8), and mount.s3fs-meta returns the statuses of mount(8).
"""

import enum
from collections.abc import Iterator, Mapping
from typing import Final

from s3fs_meta import bucket_errors, errors, mount_errors


class ExitStatus(enum.IntEnum):
    """The exit statuses of commands, with their names."""

    DONE = 0
    BUG = 1
    USAGE = 2
    SETTINGS = 3
    PASSPHRASE = 4
    NO_FILESYSTEM = 5
    NOT_EMPTY = 6
    HELD = 7
    NOT_MOUNTED = 8
    STORE = 9
    STORE_ACCESS = 10
    UNCONDITIONAL = 11
    CORRUPTION = 12
    FENCED = 13
    LOCAL = 14
    REQUEST = 15
    CONTROL = 16
    IN_USE = 17
    INTERRUPTED = 130


MEANINGS: Final[Mapping[ExitStatus, str]] = {
    ExitStatus.DONE: "done",
    ExitStatus.BUG: "a bug; report it with the traceback",
    ExitStatus.USAGE: "an option or argument is wrong; nothing was changed",
    ExitStatus.SETTINGS: "the settings or state prevent the command; the message says what to do",
    ExitStatus.PASSPHRASE: "the passphrase or recovery key is wrong or missing",
    ExitStatus.NO_FILESYSTEM: "there is no filesystem at the URL",
    ExitStatus.NOT_EMPTY: "mkfs found objects at the URL, or a filesystem around it",
    ExitStatus.HELD: "another host, or another process on this host, is using the filesystem",
    ExitStatus.NOT_MOUNTED: "the filesystem is not mounted on this host",
    ExitStatus.STORE: "the store cannot be reached, or its response is invalid",
    ExitStatus.STORE_ACCESS: "credentials, policy, bucket or region are wrong",
    ExitStatus.UNCONDITIONAL: "the store ignores conditional writes",
    ExitStatus.CORRUPTION: "stored data is damaged; run fsck",
    ExitStatus.FENCED: "another host has taken the filesystem over",
    ExitStatus.LOCAL: "the local disk, the database or standard output failed",
    ExitStatus.REQUEST: "the filesystem refused the operation: no space, read-only, not permitted",
    ExitStatus.CONTROL: "the mount sent no valid response, or programs do not see its change yet",
    ExitStatus.IN_USE: "unmounted, but processes on this host still use the filesystem",
    ExitStatus.INTERRUPTED: "interrupted by a signal",
}

HOMES: Final = (errors, bucket_errors, mount_errors)  # the modules that define error classes

# The first matching class decides the status, so subclasses precede their base classes.
FAMILIES: Final[tuple[tuple[type[BaseException], ExitStatus], ...]] = (
    (errors.PassphraseError, ExitStatus.PASSPHRASE),
    (errors.UsageError, ExitStatus.USAGE),
    (errors.NotAFilesystemError, ExitStatus.NO_FILESYSTEM),
    (errors.NotEmptyError, ExitStatus.NOT_EMPTY),
    (errors.HeldError, ExitStatus.HELD),
    (mount_errors.NotMountedError, ExitStatus.NOT_MOUNTED),
    (mount_errors.InUseError, ExitStatus.IN_USE),
    (errors.UnconditionalStoreError, ExitStatus.UNCONDITIONAL),
    (errors.SettingsError, ExitStatus.SETTINGS),
    (errors.StoreAccessError, ExitStatus.STORE_ACCESS),
    (errors.StoreError, ExitStatus.STORE),
    (errors.CorruptionError, ExitStatus.CORRUPTION),
    (errors.FencedError, ExitStatus.FENCED),
    (errors.ShortageError, ExitStatus.LOCAL),
    (errors.ThreadShortageError, ExitStatus.LOCAL),
    (errors.DatabaseError, ExitStatus.LOCAL),
    (errors.UnprintedKeyError, ExitStatus.LOCAL),
    (errors.FsError, ExitStatus.REQUEST),
    (errors.ControlError, ExitStatus.CONTROL),
    (OSError, ExitStatus.LOCAL),
    (KeyboardInterrupt, ExitStatus.INTERRUPTED),
)

# The statuses of fsck(8). check.report combines the numbers of these statuses.
FSCK_MEANINGS: Final[Mapping[int, str]] = {
    0: "no errors",
    1: "errors were corrected",
    4: "errors remain",
    5: "some errors were corrected, others remain",
    8: "the check failed because of the store, passphrase, lease or disk",
    16: "an option or argument is wrong",
    32: "interrupted",
}
FSCK_OPERATIONAL: Final = 8
FSCK_USAGE: Final = 16
FSCK_CANCELLED: Final = 32

# The exit statuses that mount(8) expects from its helpers.
MOUNT_MEANINGS: Final[Mapping[int, str]] = {
    0: "mounted",
    1: "an option or argument is wrong",
    4: "a bug; report it with the traceback",
    8: "interrupted",
    32: "the mount failed",
}
MOUNT_USAGE: Final = 1
MOUNT_BUG: Final = 4
MOUNT_INTERRUPTED: Final = 8
MOUNT_FAILED: Final = 32


def status_of(exc: BaseException) -> ExitStatus:
    """Return the exit status of an error; an error outside all families is a bug."""
    for family, status in FAMILIES:
        if is_kind(exc, family):
            return status
    return ExitStatus.BUG


def is_kind(exc: BaseException, *families: type[BaseException]) -> bool:
    """Return whether an error, or a daemon's error inside this error, has a given class."""
    kind = type(exc)
    if isinstance(exc, errors.ControlError):
        remote = next((getattr(home, exc.kind) for home in HOMES if hasattr(home, exc.kind)), None)
        if isinstance(remote, type) and issubclass(remote, errors.S3fsError):
            kind = remote
    return issubclass(kind, families)


def fsck_status(status: ExitStatus) -> int:
    """Return the exit status of fsck(8) that corresponds to *status*."""
    return {
        ExitStatus.DONE: 0,
        ExitStatus.USAGE: FSCK_USAGE,
        ExitStatus.INTERRUPTED: FSCK_CANCELLED,
    }.get(status, FSCK_OPERATIONAL)


def mount_status(status: ExitStatus) -> int:
    """Return the exit status of mount(8) that corresponds to *status*."""
    return {
        ExitStatus.DONE: 0,
        ExitStatus.USAGE: MOUNT_USAGE,
        ExitStatus.BUG: MOUNT_BUG,
        ExitStatus.INTERRUPTED: MOUNT_INTERRUPTED,
    }.get(status, MOUNT_FAILED)


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside an exception group, or an error that is not a group."""
    members = getattr(exc, "exceptions", None)
    if isinstance(members, tuple):
        for member in members:
            yield from leaves(member)
    else:
        yield exc
