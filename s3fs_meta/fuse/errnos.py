"""The errno of every error class, and the errors that make a mount read-only.

Owns: the only table of errnos. Does not know: pyfuse3.
``tests/fuse/test_errnos.py`` checks that every error class without subclasses has an errno.
"""

import errno
from collections.abc import Mapping
from typing import Final

from s3fs_meta import errors
from s3fs_meta.errors import S3fsError

ERRNOS: Final[Mapping[type[S3fsError], int]] = {
    errors.NoEntryError: errno.ENOENT,
    errors.NoInodeError: errno.ESTALE,
    errors.EntryExistsError: errno.EEXIST,
    errors.NeedsDirectoryError: errno.ENOTDIR,
    errors.RefusesDirectoryError: errno.EISDIR,
    errors.DirectoryInUseError: errno.ENOTEMPTY,
    errors.NameTooLongError: errno.ENAMETOOLONG,
    errors.TooManyLinksError: errno.EMLINK,
    errors.NoAttributeError: errno.ENODATA,
    errors.AttributeExistsError: errno.EEXIST,
    errors.AttributeTooBigError: errno.E2BIG,
    errors.AttributeRangeError: errno.ERANGE,
    errors.InvalidRequestError: errno.EINVAL,
    errors.NoDataError: errno.ENXIO,
    errors.NotPermittedError: errno.EPERM,
    errors.AccessRefusedError: errno.EACCES,
    errors.ReadOnlyStateError: errno.EROFS,
    errors.NoSpaceLeftError: errno.ENOSPC,
    errors.NotSupportedError: errno.EOPNOTSUPP,
    errors.TooBigError: errno.EFBIG,
    errors.BusyError: errno.EAGAIN,
    errors.UnfinishedWalkError: errno.EAGAIN,
    errors.UnknownLengthError: errno.ENOSYS,
    errors.StoreError: errno.EIO,
    errors.CorruptionError: errno.EIO,
    errors.ShortageError: errno.EIO,
    errors.ThreadShortageError: errno.EIO,
    errors.DatabaseError: errno.EIO,
    errors.FencedError: errno.EROFS,
    errors.SettingsError: errno.EINVAL,
    errors.UnprintedKeyError: errno.EIO,
    errors.ControlError: errno.EIO,
}

# Errors that make a mount read-only: rows contradict each other, or SQLite may have undone changes.
# A damaged block does not make a mount read-only; only reads of that block fail.
DEGRADING: Final = (errors.DatabaseError, errors.MetadataError)

# The errno that reports an unexpected exception.
UNEXPECTED: Final = errno.EIO

# Errors that are normal results of requests. They are not logged.
ORDINARY: Final = (errors.FsError,)


def errno_of(exc: S3fsError) -> int:
    """Return the errno for an error's class, or for its nearest base class in the table."""
    for kind in type(exc).__mro__:
        code = ERRNOS.get(kind)
        if code is not None:
            return code
    return UNEXPECTED


def word(code: int) -> str:
    """Return the name of an errno, for example ENOENT."""
    return errno.errorcode.get(code, str(code))
