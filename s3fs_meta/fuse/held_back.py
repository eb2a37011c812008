"""Blocking the requests that change a tree while it is frozen.

Owns: the table of these requests, and the wait before their handlers.
Does not know: which tree is frozen (``fs.freeze``).
pyfuse3 looks up the handler of each request by its name. So during a freeze an attribute of the
handler object, a function that waits first, hides the method of its class.

With a write-back cache, write(2) ends in the kernel's memory, and its data reaches the daemon
later, in any order. But before write(2) the kernel requests the file's ``security.capability``, and
this request is blocked. The kernel sends it once for each file, and again after it has requested
the file's attributes. So when a freeze begins, ``Operations`` invalidates the attributes of all
files that are open for writing. Executing a program, or showing the attribute, causes the same
request. The system call of the requesting thread distinguishes such a request from that of a
writer. A blocked request holds the kernel's lock of its directory or file. So requests that
write-back may
need pass until the kernel has sent all dirty pages: writes, new sizes, and open(2) with O_TRUNC.
Requests that only set mtime and ctime always pass, because the kernel may send them at any time.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from s3fs_meta.errors import S3fsError
from s3fs_meta.fs.freeze import Freeze
from s3fs_meta.fs.xattrs import CAPABILITY
from s3fs_meta.fuse.error_boundary import Answering, broken, failed
from s3fs_meta.fuse.extension import pyfuse3
from s3fs_meta.model import Ino

Arguments = Sequence[Any]
# Returns the inodes that a request changes, from its arguments and from whether the kernel has sent
# all dirty pages.
Changed = Callable[[Arguments, bool], Sequence[Ino]]

# Numbers of getxattr, lgetxattr, fgetxattr, getxattrat, execve and execveat in the kernel's tables.
_GENERIC: Final = frozenset({8, 9, 10, 464, 221, 281})
_READING: Final[Mapping[str, frozenset[int]]] = {
    "x86_64": frozenset({191, 192, 193, 464, 59, 322}),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
}
_READING_HERE: Final = _READING.get(os.uname().machine, frozenset())


def _first(arguments: Arguments, _is_still: bool) -> Sequence[Ino]:
    return (arguments[0],)


def _link(arguments: Arguments, _is_still: bool) -> Sequence[Ino]:
    return (arguments[0], arguments[1])


def _rename(arguments: Arguments, _is_still: bool) -> Sequence[Ino]:
    return (arguments[0], arguments[2])


def _write(arguments: Arguments, is_still: bool) -> Sequence[Ino]:
    return (arguments[0],) if is_still else ()


def _open(arguments: Arguments, is_still: bool) -> Sequence[Ino]:
    return (arguments[0],) if is_still and arguments[1] & os.O_TRUNC else ()


def _setattr(arguments: Arguments, is_still: bool) -> Sequence[Ino]:
    fields = arguments[2]
    if fields.update_mode or fields.update_uid or fields.update_gid or fields.update_atime:
        return (arguments[0],)
    return (arguments[0],) if is_still and fields.update_size else ()


def _getxattr(arguments: Arguments, _is_still: bool) -> Sequence[Ino]:
    ino, name, context = arguments
    return (ino,) if name == CAPABILITY and not _only_reads(context.pid) else ()


def _only_reads(pid: int) -> bool:
    """Return whether a thread is in a system call that only reads. Source: proc(5), syscall."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
    except OSError:
        return False  # this user may not inspect the process, which may be writing
    return bool(words) and words[0].isdigit() and int(words[0]) in _READING_HERE


CHANGING: Final[Mapping[str, Changed]] = {
    "create": _first,
    "getxattr": _getxattr,
    "link": _link,
    "mkdir": _first,
    "mknod": _first,
    "open": _open,
    "removexattr": _first,
    "rename": _rename,
    "rmdir": _first,
    "setattr": _setattr,
    "setxattr": _first,
    "symlink": _first,
    "unlink": _first,
    "write": _write,
}


def hold_back(operations: Answering, freeze: Freeze, *, is_held: bool) -> None:
    """Block the requests that change a frozen tree, or unblock them if *is_held* is false."""
    for name in CHANGING:
        if is_held:
            setattr(operations, name, _waiting(operations, name, freeze))
        else:
            vars(operations).pop(name, None)


def _waiting(operations: Answering, name: str, freeze: Freeze) -> Callable[..., Any]:
    changed, handler = CHANGING[name], getattr(operations, name)

    async def waiting(*arguments: Any) -> Any:
        try:
            inos = changed(arguments, freeze.is_still)
            if inos:
                await freeze.passed(inos)
        except S3fsError as exc:
            raise pyfuse3.FUSEError(failed(operations.status, name, arguments, exc)) from None
        except Exception as exc:  # noqa: BLE001 - the boundary, as in ``answer``
            raise pyfuse3.FUSEError(broken(operations.status, name, arguments, exc)) from None
        return await handler(*arguments)

    return waiting
