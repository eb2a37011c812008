"""The generator of docs/reference/errnos.md: the errno for each error class.

Owns: the text around the table. The table is generated from the error classes and ``fuse.errnos``.
"""

import inspect
import os
from collections.abc import Iterator
from typing import Final

from s3fs_meta import errors
from s3fs_meta.console.exits import HOMES
from s3fs_meta.errors import S3fsError
from s3fs_meta.fuse import errnos

_HEAD: Final = """\
# Errnos

<!-- Made by `make docs` from the program; do not edit by hand. -->

This page lists the errno of each request that fails, for users who debug a program on a mount.
The kernel itself returns further errors, mainly EACCES and EPERM, because it checks permissions.

*Logged*: the daemon's log has a line with the operation, the inode and the reason.
*Degrades*: the mount accepts no more changes
([what to do](../guide/troubleshooting.md#read-only-file-system)).
A bug of the program causes {unexpected}, is logged with a traceback, and degrades the mount.
On Linux ENOTSUP and EOPNOTSUPP are one number.

| errno | means | error | when | logged | degrades |
| --- | --- | --- | --- | --- | --- |
"""

_FOOT: Final = """
[Troubleshooting](../guide/troubleshooting.md) describes what to do about these errors;
[semantics](../design/semantics.md) lists the system calls that are always refused.
"""


# Base classes of errors. Only their subclasses are raised.
FAMILIES: Final = frozenset(
    {
        errors.S3fsError,
        errors.FsError,
        errors.StoreError,
        errors.PermanentStoreError,
        errors.CorruptionError,
    }
)
_MODULES: Final = frozenset(home.__name__ for home in HOMES)
# Base classes of errors that only commands raise, not filesystem requests.
_ELSEWHERE: Final = (errors.SettingsError, errors.ControlError)


def page() -> str:
    """Return the text of errnos.md."""
    met = sorted(_met(), key=lambda kind: (errnos.word(_code(kind)), kind.__name__))
    unexpected = errnos.word(errnos.UNEXPECTED)
    return _HEAD.format(unexpected=unexpected) + "".join(map(_row, met)) + _FOOT


def _met() -> Iterator[type[S3fsError]]:
    """Yield every error class that a filesystem request can raise."""
    for kind in _below(S3fsError):
        if kind not in FAMILIES and not issubclass(kind, _ELSEWHERE):
            yield kind


def _below(kind: type[S3fsError]) -> Iterator[type[S3fsError]]:
    for child in kind.__subclasses__():
        if child.__module__ in _MODULES:
            yield child
            yield from _below(child)


def _code(kind: type[S3fsError]) -> int:
    return next(errnos.ERRNOS[one] for one in kind.__mro__ if one in errnos.ERRNOS)


def _row(kind: type[S3fsError]) -> str:
    code = _code(kind)
    logged = "no" if issubclass(kind, errnos.ORDINARY) else "yes"
    degrades = "yes" if issubclass(kind, errnos.DEGRADING) else "no"
    when = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).replace("|", "\\|")
    cells = (errnos.word(code), os.strerror(code), f"`{kind.__name__}`", when, logged, degrades)
    return f"| {' | '.join(cells)} |\n"
