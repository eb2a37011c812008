"""The write-back process: at the daemon's request it makes the kernel write back one mount.

Owns: the system calls that may wait for the daemon. Does not know: how the daemon handles
writes. The daemon must not make these system calls itself. A thread that waits in the kernel for a
reply of its own process prevents a killed daemon from exiting, and keeps ``/dev/fuse`` open. The
write-back process is started by execve(2) and inherits only a socket of the daemon. It may be
killed at any time, and exits when the socket is closed or its parent exits.

The protocol has one line per request and one per reply, on standard input and output:

    daemon → process   <number> <device number, or 0: any>
    process → daemon   <number> done | <number> failed <errno> <text>

The module runs as a script and imports no other module of the package. So it starts in about 30 ms
and uses 9 MB.
Design: docs/design/durability.md, "From the kernel to the daemon".
"""

import ctypes
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AT_FDCWD = -100
_OPEN_TREE = 428  # open_tree(2) has this number on every architecture since Linux 5.2
_OPEN_TREE_CLONE = 1
_PR_SET_PDEATHSIG = 1
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # escaped blanks and backslashes in /proc/PID/mountinfo

_libc = ctypes.CDLL(None, use_errno=True)


def collect(mountpoint: bytes, name: bytes, device: int) -> None:
    """Start write-back of all dirty pages in a mount, then open and close its barrier.

    The barrier is a hidden file of the daemon. The kernel queues the release of a closed file
    behind all earlier writes. When the daemon receives the release, it has received these writes.

    Args:
        mountpoint: the mountpoint.
        name: the name of the barrier, in the root of the filesystem.
        device: the device number of the filesystem; 0 to use any filesystem on *mountpoint*.

    Raises:
        OSError: the filesystem cannot be reached.
    """
    with _root(mountpoint, device) as root:
        # An error is ignored: it may concern an earlier write, which close(2) and fsync(2) report.
        # The kernel has started write-back nevertheless.
        _libc.syncfs(root)
        os.close(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root))


@contextmanager
def _root(mountpoint: bytes, device: int) -> Iterator[int]:
    """Open the root of the mount; with CAP_SYS_ADMIN, the mountpoint does not become busy.

    Raises:
        OSError: no mount of the filesystem is visible to this process.
    """
    why = OSError(errno.ENXIO, "the filesystem is no longer mounted here", os.fsdecode(mountpoint))
    for path in _candidates(mountpoint, device):
        try:
            root = open_root(path)
        except OSError as exc:
            why = exc
            continue
        try:
            if device in {0, os.fstat(root).st_dev}:
                yield root
                return
        finally:
            os.close(root)
    raise why


def _candidates(mountpoint: bytes, device: int) -> Iterator[bytes]:
    """Yield paths at which a filesystem may be mounted, including other mount namespaces."""
    yield mountpoint
    found = _mountpoints(b"self", device)
    yield from found
    if not found:
        for process in os.listdir(b"/proc"):
            if process.isdigit():
                for path in _mountpoints(process, device)[:1]:
                    yield b"/proc/%s/root%s" % (process, path)


def open_root(path: bytes) -> int:
    """Open a directory; with CAP_SYS_ADMIN, its mountpoint does not become busy."""
    tree = _libc.syscall(
        _OPEN_TREE, _AT_FDCWD, ctypes.c_char_p(path), _OPEN_TREE_CLONE | os.O_CLOEXEC
    )
    if tree < 0:  # without CAP_SYS_ADMIN, open the mount itself, which becomes busy
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
    finally:
        os.close(tree)


def _mountpoints(process: bytes, device: int) -> list[bytes]:
    """Return the mountpoints of a filesystem in a process's namespace (proc_pid_mountinfo(5))."""
    number = b"%d:%d" % (os.major(device), os.minor(device))
    try:
        with open(b"/proc/%s/mountinfo" % process, "rb") as lines:
            found = [line.split(b" ")[2:5] for line in lines]
    except OSError:
        return []  # the process has exited, or this user has no permission to inspect it
    return [
        _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), path)
        for one, root, path in found
        if one == number and root == b"/"
    ]


def serve(requests: int, answers: int, work: Callable[[int], None]) -> None:
    """Carry out each request and reply to it, until the daemon closes the connection."""
    rest = b""
    while piece := os.read(requests, 4096):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number, device = line.split(b" ")
            try:
                work(int(device))
                answer = b"done"
            except OSError as exc:
                text = str(exc).replace("\n", " ")
                answer = b"failed %d %s" % (exc.errno or errno.EIO, os.fsencode(text))
            os.write(answers, b"%s %s\n" % (number, answer))


def main(mountpoint: str, name: str, parent: str) -> None:
    """Serve the daemon that started this process, and exit when the daemon exits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the daemon needs this process until it exits
    os.chdir("/")  # a working directory on a mount would keep that mount busy
    os.closerange(2, os.sysconf("SC_OPEN_MAX"))
    os.open(os.devnull, os.O_WRONLY)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        return  # the parent exited before PR_SET_PDEATHSIG was set
    where, barrier = os.fsencode(mountpoint), os.fsencode(name)
    serve(0, 1, lambda device: collect(where, barrier, device))


if __name__ == "__main__":
    main(*sys.argv[1:])
