"""Probed operations on attributes, locks, notifications and syncs of files."""

import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import time
from pathlib import Path
from typing import Final

from contrib.conformance.probe_checks import (
    Different,
    Operations,
    checked,
    expect,
    libc,
    make_file,
    refused,
)

OPERATIONS = Operations()

MIB: Final = 1 << 20
USER_ID: Final = 65534
FS_IOC_GETFLAGS: Final = 0x80086601
FS_IOC_SETFLAGS: Final = 0x40086602
FS_IMMUTABLE_FL: Final = 0x10
FS_APPEND_FL: Final = 0x20
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
STATX_BTIME: Final = 0x800
STATX_BTIME_AT: Final = 80  # Offset of the birth time in struct statx.
STATX_BYTES: Final = 256
HANDLE_BYTES: Final = 128
IN_CREATE: Final = 0x100
F_OFD_SETLK: Final = 37
XATTR_CREATE, XATTR_REPLACE = 1, 2


@OPERATIONS.add("owner and mode", "chown(2)")
def _owner(folder: Path) -> None:
    path = make_file(folder)
    os.chown(path, 12, 34)
    path.chmod(0o4711)
    found = path.stat()
    expect((found.st_uid, found.st_gid, found.st_mode & 0o7777), (12, 34, 0o4711))


@OPERATIONS.add("a write clears set-user-ID", "write(2)")
def _privilege(folder: Path) -> None:
    path = make_file(folder)
    path.chmod(0o4755)
    fd = os.open(path, os.O_WRONLY)
    child = os.fork()
    if child == 0:  # The child process drops its privileges and uses a file that root opened.
        status = 1
        try:
            os.setuid(USER_ID)
            status = os.write(fd, b"x") - 1
        finally:
            os._exit(status)
    os.close(fd)
    expect(os.waitpid(child, 0)[1], 0)
    expect(path.stat().st_mode & 0o7777, 0o755)


@OPERATIONS.add("times to the nanosecond", "utimensat(2)")
def _times(folder: Path) -> None:
    path = make_file(folder)
    os.utime(path, ns=(1_000_000_001, -5))
    expect((path.stat().st_atime_ns, path.stat().st_mtime_ns), (1_000_000_001, -5))


@OPERATIONS.add("time of birth", "statx(2), STATX_BTIME")
def _birth(folder: Path) -> None:
    path, buffer = make_file(folder), ctypes.create_string_buffer(STATX_BYTES)
    checked(libc.statx(AT_FDCWD, os.fsencode(path), 0, STATX_BTIME, buffer))
    [mask] = struct.unpack_from("I", buffer.raw, 0)
    [seconds] = struct.unpack_from("q", buffer.raw, STATX_BTIME_AT)
    expect(bool(mask & STATX_BTIME), True)
    expect(abs(seconds - time.time()) < 60, True)


@OPERATIONS.add("a new directory inherits group and set-group-ID", "inode(7), S_ISGID")
def _set_group(folder: Path) -> None:
    os.chown(folder, 0, 77)
    folder.chmod(0o2755)
    (folder / "d").mkdir()
    found = (folder / "d").stat()
    expect((found.st_gid, bool(found.st_mode & stat.S_ISGID)), (77, True))


@OPERATIONS.add("extended attributes of users", "xattr(7), user")
def _attributes(folder: Path) -> None:
    path = make_file(folder)
    os.setxattr(path, "user.a", b"1" * 2000)
    refused(errno.EEXIST, lambda: os.setxattr(path, "user.a", b"2", XATTR_CREATE))
    refused(errno.ENODATA, lambda: os.setxattr(path, "user.b", b"2", XATTR_REPLACE))
    expect(os.listxattr(path), ["user.a"])
    os.removexattr(path, "user.a")


@OPERATIONS.add("extended attributes of root and of programs", "xattr(7), trusted, security")
def _attributes_of_root(folder: Path) -> None:
    path = make_file(folder)
    for name in ("trusted.a", "security.a"):
        os.setxattr(path, name, b"1")
        expect(os.getxattr(path, name), b"1")


def _acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@OPERATIONS.add("an access control list shows in the mode", "acl(5)")
def _access_list(folder: Path) -> None:
    path, no_id = make_file(folder), 0xFFFFFFFF
    path.chmod(0o600)
    entries = ((1, 6, no_id), (2, 4, 1234), (4, 0, no_id), (16, 4, no_id), (32, 0, no_id))
    os.setxattr(path, "system.posix_acl_access", _acl(*entries))
    expect(path.stat().st_mode & 0o777, 0o640)


@OPERATIONS.add("a default access control list replaces the umask", "acl(5)")
def _default_list(folder: Path) -> None:
    no_id, before = 0xFFFFFFFF, os.umask(0o077)
    try:
        entries = ((1, 7, no_id), (4, 7, no_id), (32, 7, no_id))
        os.setxattr(folder, "system.posix_acl_default", _acl(*entries))
        (folder / "f").touch(mode=0o666)
    finally:
        os.umask(before)
    expect((folder / "f").stat().st_mode & 0o777, 0o666)


def _flags(path: Path, wanted: int | None = None) -> int:
    with path.open("rb") as file:
        if wanted is not None:
            fcntl.ioctl(file.fileno(), FS_IOC_SETFLAGS, struct.pack("l", wanted))
        found: int = struct.unpack("l", fcntl.ioctl(file.fileno(), FS_IOC_GETFLAGS, bytes(8)))[0]
    return found


@OPERATIONS.add("flags of an inode", "ioctl_iflags(2)")
def _inode_flags(folder: Path) -> None:
    _flags(make_file(folder))


@OPERATIONS.add("an immutable file", "ioctl_iflags(2), FS_IMMUTABLE_FL")
def _immutable(folder: Path) -> None:
    path = make_file(folder)
    before = _flags(path)
    _flags(path, before | FS_IMMUTABLE_FL)
    try:
        refused(errno.EPERM, path.unlink)
    finally:
        _flags(path, before)


@OPERATIONS.add("a file that can only grow", "ioctl_iflags(2), FS_APPEND_FL")
def _append_only(folder: Path) -> None:
    path = make_file(folder)
    before = _flags(path)
    _flags(path, before | FS_APPEND_FL)
    try:
        refused(errno.EPERM, lambda: os.open(path, os.O_WRONLY))
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    finally:
        _flags(path, before)


@OPERATIONS.add("a file by its handle", "open_by_handle_at(2)")
def _handle(folder: Path) -> None:
    path = make_file(folder)
    handle = ctypes.create_string_buffer(struct.pack("Ii", HANDLE_BYTES, 0) + bytes(HANDLE_BYTES))
    mount = ctypes.c_int()
    checked(libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), handle, ctypes.byref(mount), 0))
    here = os.open(folder, os.O_RDONLY)
    try:
        os.close(checked(libc.open_by_handle_at(here, handle, os.O_RDONLY)))
    finally:
        os.close(here)


@OPERATIONS.add("locks of whole files", "flock(2)")
def _flock(folder: Path) -> None:
    with make_file(folder).open("rb") as one, (folder / "file").open("rb") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        refused(errno.EAGAIN, lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))


@OPERATIONS.add("locks of open file descriptions", "fcntl(2), F_OFD_SETLK")
def _range_lock(folder: Path) -> None:
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 10, 0)
    with make_file(folder).open("r+b") as one, (folder / "file").open("r+b") as other:
        fcntl.fcntl(one, F_OFD_SETLK, lock)
        refused(errno.EAGAIN, lambda: fcntl.fcntl(other, F_OFD_SETLK, lock))


@OPERATIONS.add("a lease", "fcntl(2), F_SETLEASE")
def _lease(folder: Path) -> None:
    with make_file(folder).open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)


@OPERATIONS.add("notification of changes in a directory", "inotify(7)")
def _notified(folder: Path) -> None:
    fd = checked(libc.inotify_init())
    try:
        checked(libc.inotify_add_watch(fd, os.fsencode(folder), IN_CREATE))
        (folder / "f").touch()
        expect(bool(select.select([fd], [], [], 5)[0]), True)
    finally:
        os.close(fd)


@OPERATIONS.add("sync of a file and of its directory", "fsync(2)")
def _synced(folder: Path) -> None:
    for path in (make_file(folder), folder):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.fdatasync(fd)
        os.close(fd)


@OPERATIONS.add("sync of a filesystem", "syncfs(2)")
def _synced_all(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    checked(libc.syncfs(fd))
    os.close(fd)


@OPERATIONS.add("sizes of a filesystem", "statvfs(3)")
def _sizes(folder: Path) -> None:
    found = os.statvfs(folder)
    if not 0 < found.f_bavail <= found.f_blocks or found.f_namemax != 255:
        raise Different(str(found))


@OPERATIONS.add("advice to read ahead, and to forget", "posix_fadvise(2)")
def _advice(folder: Path) -> None:
    with make_file(folder, bytes(MIB)).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
