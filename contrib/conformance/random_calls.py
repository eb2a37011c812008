"""Random system calls on names and attributes, and the processes of several users that make them.

Owns: the choice of calls, and the processes. Does not know: which filesystems are compared. A
process lives in a chroot(2), so that no symbolic link leads out of the tested directory. It has
numbered *slots* for open files. A seed and the results of the earlier calls determine the next
call.
"""

import array
import ctypes
import errno
import fcntl
import multiprocessing
import os
import random
import stat
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

SLOTS: Final = 3
USERS: Final = ((0, 0, (0,)), (1001, 1001, (2000,)), (1002, 1002, (2000, 2001)))
_IDS: Final = (0, 1001, 1002, 2000, 2001)
_NAMES: Final = ("a", "b", "c", "d", "e")
_LONG: Final = "n" * 255
_REPLY_S_MAX: Final = 120.0
_AT_EMPTY_PATH: Final = 0x1000
_GET_FLAGS: Final = 0x80086601  # FS_IOC_GETFLAGS, from linux/fs.h
_SET_FLAGS: Final = 0x40086602
IMMUTABLE: Final = 0x10
APPEND: Final = 0x20
_KEPT: Final = IMMUTABLE | APPEND
ACLS: Final = ("system.posix_acl_access", "system.posix_acl_default")
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
_libc.renameat2.argtypes = [
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint,
]  # fmt: skip
RENAME_WHITEOUT: Final = 4
_AT_FDCWD: Final = -100
_HOUR_NS: Final = 3600 * 10**9


class Call(NamedTuple):
    """A system call of one user: the name of a method of ``Caller``, and its arguments."""

    user: int  # Index in USERS.
    name: str
    arguments: tuple[Any, ...]


class Caller:
    """The system calls of one process. Each method returns the call's result or raises OSError."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}

    def _fd(self, slot: int) -> int:
        if slot not in self._slots:
            raise OSError(errno.EBADF, "no file is open in this slot of the process")
        return self._slots[slot]

    def _at(self, at: int | None) -> int | None:
        return None if at is None else self._fd(at)

    def _keep(self, slot: int, fd: int) -> None:
        self.close(slot)
        self._slots[slot] = fd

    def close(self, slot: int) -> None:
        """Close the open file of a slot, if there is one."""
        if slot in self._slots:
            os.close(self._slots.pop(slot))

    def open(self, at: int | None, path: str, flags: int, mode: int, slot: int) -> None:
        """Open a file and store its descriptor in a slot."""
        self._keep(slot, os.open(path, flags | os.O_NONBLOCK, mode, dir_fd=self._at(at)))

    def mkdir(self, at: int | None, path: str, mode: int) -> None:
        """Make a directory."""
        os.mkdir(path, mode, dir_fd=self._at(at))

    def rmdir(self, at: int | None, path: str) -> None:
        """Remove a directory."""
        os.rmdir(path, dir_fd=self._at(at))

    def unlink(self, at: int | None, path: str) -> None:
        """Remove a name of a file."""
        os.unlink(path, dir_fd=self._at(at))

    def mknod(self, at: int | None, path: str, mode: int, device: int) -> None:
        """Make a file, FIFO, socket or device."""
        os.mknod(path, mode, device, dir_fd=self._at(at))

    def symlink(self, target: str, at: int | None, path: str) -> None:
        """Make a symbolic link."""
        os.symlink(target, path, dir_fd=self._at(at))

    def link(self, at: int | None, path: str, new: str, follow: bool) -> None:
        """Make a hard link."""
        os.link(path, new, src_dir_fd=self._at(at), follow_symlinks=follow)

    def name(self, slot: int, path: str) -> None:
        """Give an open file a new name."""
        code = _libc.linkat(self._fd(slot), b"", _AT_FDCWD, path.encode(), _AT_EMPTY_PATH)
        _require(code)

    def rename(self, at: int | None, path: str, to: int | None, new: str, flags: int) -> None:
        """Rename a file or directory."""
        one, two = self._at(at), self._at(to)
        code = _libc.renameat2(
            _AT_FDCWD if one is None else one, path.encode(),
            _AT_FDCWD if two is None else two, new.encode(), flags,
        )  # fmt: skip
        _require(code)

    def chmod(self, at: int | None, path: str, mode: int) -> None:
        """Change the mode of a file."""
        os.chmod(path, mode, dir_fd=self._at(at))

    def fchmod(self, slot: int, mode: int) -> None:
        """Change the mode of an open file."""
        os.fchmod(self._fd(slot), mode)

    def chown(self, at: int | None, path: str, uid: int, gid: int, follow: bool) -> None:
        """Change the owner and group of a file."""
        os.chown(path, uid, gid, dir_fd=self._at(at), follow_symlinks=follow)

    def fchown(self, slot: int, uid: int, gid: int) -> None:
        """Change the owner and group of an open file."""
        os.fchown(self._fd(slot), uid, gid)

    def utime(self, at: int | None, path: str, times: Sequence[int] | None, follow: bool) -> None:
        """Set atime and mtime in nanoseconds; None means the current time."""
        folder = self._at(at)
        if times is None:
            os.utime(path, dir_fd=folder, follow_symlinks=follow)
        else:
            os.utime(path, ns=(times[0], times[1]), dir_fd=folder, follow_symlinks=follow)

    def truncate(self, path: str, size: int) -> None:
        """Change the size of a file."""
        os.truncate(path, size)

    def ftruncate(self, slot: int, size: int) -> None:
        """Change the size of an open file."""
        os.ftruncate(self._fd(slot), size)

    def write(self, slot: int, content: bytes, offset: int) -> int:
        """Write into an open file."""
        return os.pwrite(self._fd(slot), content, offset)

    def read(self, slot: int, length: int, offset: int) -> bytes:
        """Read from an open file."""
        return os.pread(self._fd(slot), length, offset)

    def fallocate(self, slot: int, mode: int, offset: int, length: int) -> None:
        """Allocate or remove a byte range of a file."""
        _require(_libc.fallocate(self._fd(slot), mode, offset, length))

    def copy(self, slot: int, to: int, length: int, offset: int, at: int) -> int:
        """Copy a byte range of a file."""
        return os.copy_file_range(self._fd(slot), self._fd(to), length, offset, at)

    def setxattr(self, path: str, name: str, value: bytes, flags: int, follow: bool) -> None:
        """Set an extended attribute of a file."""
        os.setxattr(path, name, value, flags, follow_symlinks=follow)

    def fsetxattr(self, slot: int, name: str, value: bytes, flags: int) -> None:
        """Set an extended attribute of an open file."""
        os.setxattr(self._fd(slot), name, value, flags)

    def removexattr(self, path: str, name: str, follow: bool) -> None:
        """Remove an extended attribute of a file."""
        os.removexattr(path, name, follow_symlinks=follow)

    def getxattr(self, path: str, name: str, follow: bool) -> bytes:
        """Return the value of an extended attribute."""
        return os.getxattr(path, name, follow_symlinks=follow)

    def listxattr(self, path: str, follow: bool) -> list[str]:
        """Return the names of all extended attributes of a file."""
        return sorted(os.listxattr(path, follow_symlinks=follow))

    def access(self, at: int | None, path: str, mode: int) -> bool:
        """Return whether the user has the given permissions for a file."""
        return os.access(path, mode, dir_fd=self._at(at), effective_ids=True)

    def stat(self, at: int | None, path: str, follow: bool) -> tuple[int, ...]:
        """Return the attributes of a file that do not depend on the filesystem."""
        return shown(os.stat(path, dir_fd=self._at(at), follow_symlinks=follow))

    def readlink(self, at: int | None, path: str) -> str:
        """Return the target of a symbolic link."""
        return os.readlink(path, dir_fd=self._at(at))

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return sorted(os.listdir(path))

    def flistdir(self, slot: int) -> list[str]:
        """Return the names in an open directory."""
        return sorted(os.listdir(self._fd(slot)))

    def umask(self, mask: int) -> int:
        """Set the umask of the process."""
        return os.umask(mask)

    def chattr(self, path: str, flags: int) -> None:
        """Set the flags "immutable" and "append only" of an inode."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            value = array.array("L", [0])
            fcntl.ioctl(fd, _GET_FLAGS, value)
            value[0] = value[0] & ~_KEPT | flags
            fcntl.ioctl(fd, _SET_FLAGS, value)
        finally:
            os.close(fd)

    def fsync(self, slot: int) -> None:
        """Call fsync or fdatasync on an open file."""
        os.fsync(self._fd(slot))

    def slots(self) -> dict[int, tuple[int, ...]]:
        """Return the attributes of all open files."""
        return {slot: shown(os.fstat(fd)) for slot, fd in sorted(self._slots.items())}


def shown(found: os.stat_result) -> tuple[int, ...]:
    """Return mode, link count, owner, group, size (except of directories) and device number."""
    size, mode = 0 if stat.S_ISDIR(found.st_mode) else found.st_size, found.st_mode
    if stat.S_ISREG(mode) and not mode & stat.S_IXGRP:
        # FUSE keeps this bit if the file changes: see docs/design/semantics.md.
        mode &= ~stat.S_ISGID
    return (mode, found.st_nlink, found.st_uid, found.st_gid, size, found.st_rdev)


def _require(code: int) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Process:
    """A process of one user in a chroot(2)."""

    def __init__(self, top: str, user: int) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(top, user, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, call: Call) -> object:
        """Make a system call; return its result, or the name of an errno.

        Raises: TimeoutError: the call did not return.
        """
        self._connection.send((call.name, call.arguments))
        if not self._connection.poll(_REPLY_S_MAX):
            raise TimeoutError(f"the system call had no result within {_REPLY_S_MAX:g} s: {call}")
        return self._connection.recv()

    def end(self) -> None:
        """End the process of this user."""
        # Closing the connection is not enough, because processes of other users have copies of it.
        self._connection.send(None)
        self._connection.close()
        self._process.join(_REPLY_S_MAX)


def _serve(top: str, user: int, connection: Any) -> None:
    uid, gid, groups = USERS[user]
    os.chroot(top)
    os.chdir("/")
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)
    os.umask(0o022)
    caller = Caller()
    while (received := connection.recv()) is not None:
        name, arguments = received
        result: object
        try:
            result = getattr(caller, name)(*arguments)
        except OSError as exc:
            result = f"E:{errno.errorcode[exc.errno or 0]}"
        except ValueError as exc:
            result = str(exc)
        connection.send(result)


class Choice:
    """A generator that chooses the next system call by random numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.paths: list[str] = []  # Existing paths.
        self.open_slots: list[set[int]] = [set() for _ in USERS]
        self._user = 0
        self._makers: list[tuple[int, Callable[[], tuple[str, tuple[Any, ...]]]]] = [
            (8, self._open), (8, self._mkdir), (5, self._mknod), (4, self._symlink),
            (6, self._link), (10, self._rename), (6, self._unlink), (5, self._rmdir),
            (6, self._chmod), (6, self._chown), (5, self._utime), (3, self._truncate),
            (6, self._write), (3, self._range), (6, self._setxattr), (3, self._acl),
            (3, self._xattr), (6, self._look), (3, self._tmpfile), (1, self._umask),
            (1, self._chattr), (3, self._on_slot),
        ]  # fmt: skip

    def next(self) -> Call:
        """Return the next random system call."""
        weights, makers = zip(*self._makers, strict=True)
        (make,) = self._random.choices(makers, weights)
        self._user = 0 if make == self._chattr else self._random.choice((0, 0, 1, 1, 2))
        name, arguments = make()
        return Call(self._user, name, arguments)

    def note(self, call: Call, result: object) -> None:
        """Learn from the result of a call which slots now have an open file."""
        if call.name == "open" and result is None:
            self.open_slots[call.user].add(call.arguments[4])
        elif call.name == "close":
            self.open_slots[call.user].discard(call.arguments[0])

    def _path(self) -> str:
        one = self._random
        if self.paths and one.random() < 0.5:
            path = one.choice(self.paths)
        else:
            parents = [each for each in self.paths if each.count("/") < 3] or [""]
            parent = one.choice([*parents, "", ""])
            path = f"{parent}/{one.choice(_NAMES)}".lstrip("/")
        kind = one.random()
        if kind < 0.02:
            path = f"{path}/"
        elif kind < 0.03:
            path = f"{path}/."
        elif kind < 0.04:
            path = f"{path}/.."
        elif kind < 0.05:
            path = f"{path}/{one.choice(_NAMES)}/../{one.choice(_NAMES)}"
        elif kind < 0.06:
            path = f"{path}/{_LONG}{one.choice(('', 'n'))}"
        elif kind < 0.062:
            path = one.choice(("", ".", "..", "/", "./a", "../a"))
        return path

    def _at(self) -> int | None:
        return self._slot() if self._random.random() < 0.06 else None

    def _slot(self) -> int:
        known = sorted(self.open_slots[self._user])
        if known and self._random.random() < 0.9:
            return self._random.choice(known)
        return self._random.randrange(SLOTS)

    def _follow(self) -> bool:
        return self._random.random() < 0.7

    def _mode(self) -> int:
        one = self._random
        mode = one.choice((0o777, 0o755, 0o700, 0o644, 0o666, 0o600, 0o000, one.randrange(0o1000)))
        if one.random() < 0.25:
            mode |= one.choice((0o4000, 0o2000, 0o1000, 0o6000))
        return mode

    def _open(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        flags = one.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR))
        for extra, share in (
            (os.O_CREAT, 0.6), (os.O_EXCL, 0.15), (os.O_TRUNC, 0.2), (os.O_APPEND, 0.1),
            (os.O_NOFOLLOW, 0.1), (os.O_DIRECTORY, 0.1), (os.O_PATH, 0.03), (os.O_NOATIME, 0.03),
        ):  # fmt: skip
            if one.random() < share:
                flags |= extra
        return "open", (
            self._at(),
            self._path(),
            flags,
            self._mode(),
            self._random.randrange(SLOTS),
        )

    def _mkdir(self) -> tuple[str, tuple[Any, ...]]:
        return "mkdir", (self._at(), self._path(), self._mode())

    def _mknod(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        kind = one.choice((stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK))
        device = os.makedev(1, 3) if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
        if kind == stat.S_IFCHR and one.random() < 0.3:
            device = 0
        return "mknod", (self._at(), self._path(), kind | self._mode(), device)

    def _symlink(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        target = one.choice((self._path(), one.choice(_NAMES), "../a", "t" * 4095, "t" * 4096, "/"))
        return "symlink", (target, self._at(), self._path())

    def _link(self) -> tuple[str, tuple[Any, ...]]:
        if self._random.random() < 0.3:
            return "name", (self._slot(), self._path())
        return "link", (self._at(), self._path(), self._path(), self._follow())

    def _rename(self) -> tuple[str, tuple[Any, ...]]:
        flags = self._random.choice((0, 0, 0, 0, 1, 2, 2, 4, 5, 3, 6, 8))
        return "rename", (self._at(), self._path(), self._at(), self._path(), flags)

    def _unlink(self) -> tuple[str, tuple[Any, ...]]:
        return "unlink", (self._at(), self._path())

    def _rmdir(self) -> tuple[str, tuple[Any, ...]]:
        return "rmdir", (self._at(), self._path())

    def _chmod(self) -> tuple[str, tuple[Any, ...]]:
        if self._random.random() < 0.2:
            return "fchmod", (self._slot(), self._mode())
        return "chmod", (self._at(), self._path(), self._mode())

    def _chown(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        uid, gid = one.choice(((one.choice(_IDS), -1), (-1, one.choice(_IDS)),
                               (one.choice(_IDS), one.choice(_IDS))))  # fmt: skip
        if one.random() < 0.2:
            return "fchown", (self._slot(), uid, gid)
        return "chown", (self._at(), self._path(), uid, gid, self._follow())

    def _utime(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        times = None
        if one.random() < 0.7:
            times = tuple(
                one.choice((0, 1, -1, 10**18 + 7, 2**31 * 10**9, one.randrange(2 * 10**18)))
                for _ in range(2)
            )
        return "utime", (self._at(), self._path(), times, self._follow())

    def _size(self) -> int:
        return self._random.choice((0, 1, 4095, 4096, 5000, 70000, self._random.randrange(200_000)))

    def _truncate(self) -> tuple[str, tuple[Any, ...]]:
        if self._random.random() < 0.5:
            return "ftruncate", (self._slot(), self._size())
        return "truncate", (self._path(), self._random.choice((self._size(), self._size(), -1)))

    def _write(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        if one.random() < 0.3:
            return "read", (self._slot(), self._size(), self._size())
        content = bytes([one.randrange(1, 256)]) * one.choice((1, 100, 4096, 10000))
        return "write", (self._slot(), content, self._size())

    def _range(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        if one.random() < 0.5:
            return "copy", (self._slot(), self._slot(), self._size(), self._size(), self._size())
        mode = one.choice((0, 1, 2, 3, 0x10, 0x11))
        return "fallocate", (self._slot(), mode, self._size(), self._size())

    def _attribute(self) -> str:
        return self._random.choice(
            ("user.a", "user.b", "trusted.a", "security.a", "system.a", "other.a",
             "user." + "n" * 250, "user." + "n" * 251, *ACLS)
        )  # fmt: skip

    def _setxattr(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        value = bytes([one.randrange(256)]) * one.choice((0, 1, 20, 100))
        flags = one.choice((0, 0, 0, os.XATTR_CREATE, os.XATTR_REPLACE))
        if one.random() < 0.2:
            return "fsetxattr", (self._slot(), self._attribute(), value, flags)
        return "setxattr", (self._path(), self._attribute(), value, flags, self._follow())

    def _acl(self) -> tuple[str, tuple[Any, ...]]:
        one = self._random
        entries = [(0x01, one.randrange(8), 2**32 - 1), (0x04, one.randrange(8), 2**32 - 1)]
        named = [(0x02, one.randrange(8), uid) for uid in (1001, 1002) if one.random() < 0.4]
        groups = [(0x08, one.randrange(8), gid) for gid in (1001, 2000) if one.random() < 0.4]
        if named or groups or one.random() < 0.2:
            entries.append((0x10, one.randrange(8), 2**32 - 1))
        if one.random() < 0.95:
            entries.append((0x20, one.randrange(8), 2**32 - 1))
        entries = sorted([*entries, *named, *groups], key=lambda entry: (entry[0], entry[2]))
        value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        if one.random() < 0.1:
            value = struct.pack("<I", 2)
        return "setxattr", (self._path(), one.choice(ACLS), value, 0, self._follow())

    def _xattr(self) -> tuple[str, tuple[Any, ...]]:
        kind = self._random.choice(("removexattr", "removexattr", "getxattr", "listxattr"))
        if kind == "listxattr":
            return kind, (self._path(), self._follow())
        return kind, (self._path(), self._attribute(), self._follow())

    def _look(self) -> tuple[str, tuple[Any, ...]]:
        kind = self._random.choice(("access", "stat", "readlink", "listdir"))
        if kind == "listdir":
            return kind, (self._path(),)
        if kind == "readlink":
            return kind, (self._at(), self._path())
        last = self._random.randrange(8) if kind == "access" else self._follow()
        return kind, (self._at(), self._path(), last)

    def _tmpfile(self) -> tuple[str, tuple[Any, ...]]:
        flags = os.O_TMPFILE | self._random.choice((os.O_RDWR, os.O_WRONLY))
        if self._random.random() < 0.2:
            flags |= os.O_EXCL
        slot = self._random.randrange(SLOTS)
        return "open", (self._at(), self._path(), flags, self._mode(), slot)

    def _umask(self) -> tuple[str, tuple[Any, ...]]:
        return "umask", (self._random.choice((0, 0o022, 0o077, 0o002, 0o777)),)

    def _chattr(self) -> tuple[str, tuple[Any, ...]]:
        return "chattr", (self._path(), self._random.choice((0, IMMUTABLE, APPEND)))

    def _on_slot(self) -> tuple[str, tuple[Any, ...]]:
        return self._random.choice(("close", "flistdir", "fsync")), (self._slot(),)
