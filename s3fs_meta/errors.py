"""The tree of all exceptions that the program raises on purpose.

Owns: all errors, except errors about a damaged bucket (``bucket_errors``) and errors about mounts
that do not answer (``mount_errors``). Does not know: errnos (``fuse.errnos``), exit statuses
(``console.exits``), libraries (the caller of a library translates the exceptions).

    S3fsError
    ├── FsError                     a request cannot be carried out; becomes an errno
    ├── StoreError                  a request to the object store failed
    │   ├── TransientStoreError     a retry may succeed
    │   └── PermanentStoreError
    ├── CorruptionError             stored bytes or rows are damaged
    ├── ShortageError               no memory or file descriptor is free to access a cached block
    ├── ThreadShortageError         the machine allows no more threads
    ├── DatabaseError               SQLite failed: full disk, I/O error, locked
    ├── FencedError                 another writer has the lease or the next txg
    ├── SettingsError               the user's configuration or command line
    ├── UnprintedKeyError           standard output did not accept a new recovery key
    └── ControlError                a daemon answered with an error, or did not answer

An error takes typed arguments and builds its own message.
"""

import shlex
from typing import Any


class S3fsError(Exception):
    """The base class of all errors; ``message`` is one line, lower case, without a full stop."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def put_before(self, text: str) -> None:
        """Prefix the message with *text*, unless the message already contains *text*."""
        if text not in self.message:
            self.reword(f"{text}: {self.message}")

    def reword(self, message: str) -> None:
        """Replace the message of this error."""
        self.message = message
        self.args = (message,)


# --- errors of requests ------------------------------------------------------------------------


def quoted(name: bytes) -> str:
    """Return a name in quotes; bytes that are not UTF-8 are escaped."""
    try:
        return repr(name.decode())
    except UnicodeDecodeError:
        return repr(name)


class FsError(S3fsError):
    """A filesystem request that cannot be carried out; nothing was changed."""


class NoEntryError(FsError):
    """The directory has no entry with the name."""

    def __init__(self, parent: int, name: bytes) -> None:
        super().__init__(f"no entry {quoted(name)} in directory {parent}")
        self.parent, self.name = parent, name


class NoInodeError(FsError):
    """The inode does not exist, or no longer exists."""

    def __init__(self, ino: int) -> None:
        super().__init__(f"no inode {ino}")
        self.ino = ino


class EntryExistsError(FsError):
    """The name already exists in the directory."""

    def __init__(self, parent: int, name: bytes) -> None:
        super().__init__(f"entry {quoted(name)} exists in directory {parent}")
        self.parent, self.name = parent, name


class NeedsDirectoryError(FsError):
    """The operation needs a directory."""

    def __init__(self, ino: int) -> None:
        super().__init__(f"inode {ino} is not a directory")
        self.ino = ino


class RefusesDirectoryError(FsError):
    """The operation is not possible on a directory."""

    def __init__(self, ino: int) -> None:
        super().__init__(f"inode {ino} is a directory")
        self.ino = ino


class DirectoryInUseError(FsError):
    """The directory is not empty."""

    def __init__(self, ino: int) -> None:
        super().__init__(f"directory {ino} is not empty")
        self.ino = ino


class NameTooLongError(FsError):
    """A name or link target is longer than the limit."""

    def __init__(self, length_bytes: int) -> None:
        super().__init__(f"name of {length_bytes} bytes is too long")
        self.length_bytes = length_bytes


class TooManyLinksError(FsError):
    """The inode has the maximum number of links."""

    def __init__(self, ino: int) -> None:
        super().__init__(f"inode {ino} has too many links")
        self.ino = ino


class NoAttributeError(FsError):
    """The inode has no extended attribute with the name."""

    def __init__(self, ino: int, name: bytes) -> None:
        super().__init__(f"inode {ino} has no attribute {quoted(name)}")
        self.ino, self.name = ino, name


class AttributeExistsError(FsError):
    """XATTR_CREATE was requested and the attribute exists."""

    def __init__(self, ino: int, name: bytes) -> None:
        super().__init__(f"inode {ino} already has an attribute {quoted(name)}")
        self.ino, self.name = ino, name


class AttributeTooBigError(FsError):
    """The list of attribute names, or a value, is too long for the system calls."""

    def __init__(self, ino: int, size_bytes: int) -> None:
        super().__init__(f"attributes of inode {ino} would take {size_bytes} bytes")
        self.ino, self.size_bytes = ino, size_bytes


class AttributeRangeError(FsError):
    """An attribute name is longer than the limit (setxattr(2): ERANGE)."""

    def __init__(self, length_bytes: int) -> None:
        super().__init__(f"attribute name of {length_bytes} bytes is too long")
        self.length_bytes = length_bytes


class InvalidRequestError(FsError):
    """An argument is invalid."""

    def __init__(self, what: str, value: Any) -> None:
        super().__init__(f"{what} {value!r}")
        self.what, self.value = what, value


class NoDataError(FsError):
    """The file has no data at or after the offset."""

    def __init__(self, ino: int, offset: int) -> None:
        super().__init__(f"inode {ino} has no data at or after byte {offset}")
        self.ino, self.offset = ino, offset


class NotPermittedError(FsError):
    """The operation is never permitted, or requires a privilege."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not permitted: {what}")


class AccessRefusedError(FsError):
    """A default ACL is set on an inode that is not a directory."""

    def __init__(self, ino: int) -> None:
        super().__init__(f"access to inode {ino} denied")
        self.ino = ino


class ReadOnlyStateError(FsError):
    """The mount accepts no changes."""

    def __init__(self, why: str) -> None:
        super().__init__(f"read-only: {why}")
        self.why = why


class NoSpaceLeftError(FsError):
    """No space is left: the capacity, the cache or the disk of the cache is full."""

    def __init__(self, what: str) -> None:
        super().__init__(f"no space left: {what}")
        self.what = what


class NotSupportedError(FsError):
    """The filesystem does not support the operation."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not supported: {what}")


class TooBigError(FsError):
    """The file would be larger than the limit."""

    def __init__(self, ino: int, size_bytes: int) -> None:
        super().__init__(f"inode {ino} cannot grow to {size_bytes} bytes")
        self.ino, self.size_bytes = ino, size_bytes


class BusyError(FsError):
    """Too many requests wait for the store; a further request would block all others."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait for the object store")
        self.waiting = waiting


class UnfinishedWalkError(FsError):
    """A check of the directories above an inode is not finished; the caller repeats the request."""

    def __init__(self, ino: int) -> None:
        super().__init__(f"the directories above inode {ino} are still being checked")
        self.ino = ino


class UnknownLengthError(FsError):
    """SEEK_DATA or SEEK_HOLE is refused, because only the kernel has the file's current length."""

    def __init__(self, ino: int) -> None:
        super().__init__(f"inode {ino} is open for writing: the kernel does not report its length")
        self.ino = ino


# --- errors of the object store ----------------------------------------------------------------


def _object(key: str) -> str:
    """Quote an object key; return a phrase such as "the list of objects pack/*" unchanged."""
    return key if " " in key else repr(key)


class StoreError(S3fsError):
    """A request to the object store failed."""

    # Bytes that the last attempt sent and received; None if the store does not count them.
    sent_bytes: int | None = None
    received_bytes: int | None = None

    def note_transfer(self, sent_bytes: int | None, received_bytes: int | None) -> None:
        """Record the bytes that the last attempt sent and received."""
        self.sent_bytes, self.received_bytes = sent_bytes, received_bytes


class TransientStoreError(StoreError):
    """A store request failed, but a retry may succeed.

    If the store has never responded, a wrong endpoint is more likely than an outage. In this case,
    a request is not retried if the server's name cannot be resolved. It is retried only for a few
    seconds if the connection fails.
    """

    def __init__(
        self, key: str, code: str, *, unresolved: bool = False, unconnected: bool = False
    ) -> None:
        super().__init__(f"store failed for {_object(key)}: {code}")
        self.key, self.code = key, code
        self.unresolved = unresolved  # True if the server's name cannot be resolved
        self.unconnected = unconnected  # True if no server accepts connections at the address


class PermanentStoreError(StoreError):
    """A store request failed, and a retry would also fail."""


class StoreUnavailableError(PermanentStoreError):
    """A store request failed, and so did all retries."""

    def __init__(self, key: str, attempts: int, waited_s: float, code: str) -> None:
        tries = f" after {attempts} attempts in {waited_s:.1f} s" if attempts > 1 else ""
        super().__init__(f"store unavailable for {_object(key)}{tries}: {code}")
        self.key, self.attempts, self.waited_s, self.code = key, attempts, waited_s, code


class OfflineError(PermanentStoreError):
    """The bucket is unreachable, and the local state is insufficient for a mount without it."""

    def __init__(self, why: str, lacking: str) -> None:
        super().__init__(f"{why}; it cannot be mounted offline, because {lacking}")
        self.why, self.lacking = why, lacking


class ObjectMissingError(PermanentStoreError):
    """The store has no object with the key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} is missing")
        self.key = key


class StoreAccessError(PermanentStoreError):
    """The store denied access: credentials, policy, bucket or region are wrong."""

    def __init__(self, key: str, code: str, advice: str) -> None:
        super().__init__(f"store refused {_object(key)}: {code}; {advice}")
        self.key, self.code, self.advice = key, code, advice


class CredentialsError(StoreAccessError):
    """There are no valid credentials for the store, so no request was sent to it."""

    def __init__(self, key: str, code: str, advice: str) -> None:
        super().__init__(key, code, advice)
        self.reword(f"no valid credentials for {_object(key)}: {code}; {advice}")


class PreconditionError(PermanentStoreError):
    """A conditional write failed, because another process wrote the object first."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} was written by another process")
        self.key = key


class UnexpectedStoreError(PermanentStoreError):
    """The store responded with an unknown error code."""

    def __init__(self, key: str, code: str) -> None:
        super().__init__(f"store failed for {_object(key)}: {code}")
        self.key, self.code = key, code


class NotLocalError(StoreError):
    """A block is not cached; the caller fetches the block and retries the request."""

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} is not cached")
        self.block = block


# --- damaged bytes and rows --------------------------------------------------------------------


class CorruptionError(S3fsError):
    """Stored bytes or rows are damaged; damaged content is never returned."""


class PastUnavailableError(CorruptionError):
    """A file at a past point in time cannot be read; the current state is not affected."""

    def __init__(self, txg: int, why: str) -> None:
        super().__init__(f"cannot read the state of txg {txg}: {why}")
        self.txg = txg


class FormatError(CorruptionError):
    """A stored object has a wrong magic, checksum, length or version."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key!r} is damaged: {what}")
        self.key, self.what = key, what


class ObjectTooLargeError(FormatError):
    """An object exceeds the size limit of its kind, so its content was not read."""

    def __init__(self, key: str, size_bytes: int, max_bytes: int, etag: str) -> None:
        super().__init__(key, f"it has {size_bytes} bytes, more than the maximum of {max_bytes}")
        self.size_bytes, self.max_bytes = size_bytes, max_bytes
        self.etag = etag  # ETag with which a caller can replace the object


class NewerFormatError(FormatError):
    """This version cannot read an object that a newer version wrote; the object may be intact."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(key, what)
        self.message = f"{key!r} cannot be read: {what}; upgrade s3fs-meta"
        self.args = (self.message,)


class DamagedDatabaseError(FormatError):
    """SQLite found damage in a database; the interrupted change may be incomplete."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)
        self.changed_nothing = False  # True if the error was raised before any row changed


class MetadataError(CorruptionError):
    """Rows of the metadata contradict each other."""

    def __init__(self, what: str, ino: int) -> None:
        whose = f"metadata of inode {ino} is damaged" if ino else "the metadata is damaged"
        super().__init__(f"{whose}: {what}; unmount, and run s3fs-meta fsck -y")
        self.what, self.ino = what, ino


class BadRowError(CorruptionError):
    """A row has a value of a wrong type or out of range; only the row's inode is affected."""

    def __init__(self, what: str, ino: int) -> None:
        owner = f" of inode {ino}" if ino else ""
        super().__init__(f"{what}{owner} has invalid values; run s3fs-meta fsck -y")
        self.what, self.ino = what, ino
        self.changed_nothing = False  # True if the error was raised before any row changed


class LostBlockError(CorruptionError):
    """A dirty block is lost: its cache file is missing, short or torn."""

    def __init__(self, block: int, what: str) -> None:
        super().__init__(f"block {block} is lost: {what}")
        self.block, self.what = block, what


class ShortageError(S3fsError):
    """A cached block cannot be accessed now: the machine lacks memory or open files."""

    def __init__(self, block: int, what: str) -> None:
        super().__init__(f"block {block} cannot be accessed now: {what}")
        self.block = block


class ThreadShortageError(S3fsError):
    """No thread can be started now, so nothing was done; a retry may succeed."""

    def __init__(self) -> None:
        super().__init__(
            "no thread can be started: a limit of processes is reached (ulimit -u, TasksMax=, or"
            " pids.max of the control group)"
        )


class DatabaseError(S3fsError):
    """SQLite failed: an I/O error, a locked database, or too little memory."""


class DatabaseFullError(DatabaseError):
    """SQLite reported a full disk (SQLITE_FULL), and rolled back the open commit group."""


class FencedError(S3fsError):
    """Another writer took the lease or appended the next txg, so this mount must not write."""

    def __init__(self, our_epoch: int, their_epoch: int, holder: str) -> None:
        if our_epoch == their_epoch:
            text = f"the writer of epoch {our_epoch} on this host was replaced by {holder}"
        else:
            text = f"epoch {our_epoch} was replaced by epoch {their_epoch}, held by {holder}"
        super().__init__(text)
        self.our_epoch, self.their_epoch, self.holder = our_epoch, their_epoch, holder


# --- errors in the configuration ---------------------------------------------------------------


class SettingsError(S3fsError):
    """A setting or argument makes a request impossible; the message contains advice."""


class UsageError(SettingsError):
    """The user gave an invalid option or argument."""


class ExtensionMissingError(SettingsError):
    """The compiled C extension is missing, or was built for other versions.

    Its build depends on the versions of Python, libfuse and s3fs-meta.
    """

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the compiled extension cannot be loaded ({why}); build it: install the packages gcc, libc6-dev, pkg-config,"
            " libfuse3-dev and python3-dev, then reinstall s3fs-meta with pip install (in a checkout: make -B venv)"
        )
        self.why = why


class PassphraseError(SettingsError):
    """The passphrase or recovery key does not open this filesystem."""


class NotAFilesystemError(SettingsError):
    """The URL contains no filesystem."""

    def __init__(self, url: str, why: str = "") -> None:
        because = f": {why}" if why else ";"
        make = f"s3fs-meta mkfs {shlex.quote(url)}"
        super().__init__(f"no filesystem at {url!r}{because} create one with: {make}")


class AbsentDirectoryError(NotAFilesystemError):
    """The directory of a local store is missing or empty; its disk may not be mounted."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "that directory does not exist or is empty; mount its disk, or")


class BeingRemovedError(SettingsError):
    """A removal of the filesystem was interrupted; only s3fs-meta destroy can continue it."""

    def __init__(self, url: str) -> None:
        destroy = f"s3fs-meta destroy {shlex.quote(url)}"
        super().__init__(f"{url!r} is being removed; {destroy} completes this")


class UnfinishedFilesystemError(SettingsError):
    """The bucket has a superblock and no lease: mkfs was interrupted, or the lease was lost."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url!r} has no lease; if it ever held files, s3fs-meta fsck -y makes a new lease, and s3fs-meta mount -o ro needs none;"
            f" if mkfs was interrupted, s3fs-meta destroy removes the objects that it wrote"
        )


class NotEmptyError(SettingsError):
    """mkfs refused a URL at which objects already exist."""


class HeldError(SettingsError):
    """Another host, or another process on this host, is using the filesystem."""


class ClockError(SettingsError):
    """The clocks of this host and the store differ too much to delete objects by their age."""


class UnconditionalStoreError(SettingsError):
    """The store does not honour conditional writes, so it cannot fence a second writer."""


# --- errors of standard output -----------------------------------------------------------------


class UnprintedKeyError(S3fsError):
    """Standard output did not accept a new recovery key, so the key is not in use."""

    def __init__(self, why: str, remains: str) -> None:
        super().__init__(
            f"the recovery key cannot be written to standard output ({why}); {remains}"
        )
        self.why = why
        self.remains = remains


# --- errors of the control socket --------------------------------------------------------------


class ControlError(S3fsError):
    """The daemon of a mount answered a control request with an error, or did not answer."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind  # class name of the error that the daemon raised
