"""Times of the kernel's requests by operation, and the threads that sent recent requests.

Owns: names of operations, conversion of the C extension's counters.
Does not know: how times are shown, processes (``mount.handlers.requesters``).
The C extension counts requests, so counting a request costs two clock readings and no Python
code. A time is measured from the receipt of a request to its reply.
Source: linux/fuse.h, enum fuse_opcode.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from s3fs_meta.fuse.extension import fuse_intercept

# Opcodes with the names of their handlers. Opcodes without a handler are counted together.
OPERATIONS: Final[Mapping[int, str]] = {
    1: "lookup",
    3: "getattr",
    4: "setattr",
    5: "readlink",
    6: "symlink",
    8: "mknod",
    9: "mkdir",
    10: "unlink",
    11: "rmdir",
    12: "rename",
    13: "link",
    14: "open",
    15: "read",
    16: "write",
    17: "statfs",
    18: "release",
    20: "fsync",
    21: "setxattr",
    22: "getxattr",
    23: "listxattr",
    24: "removexattr",
    27: "opendir",
    28: "readdir",
    29: "releasedir",
    30: "fsyncdir",
    35: "create",
    39: "ioctl",
    43: "fallocate",
    44: "readdir",  # the opcode READDIRPLUS
    45: "rename",  # the opcode RENAME2
    46: "lseek",
    47: "copy_file_range",
    51: "create",  # the opcode TMPFILE
    52: "statx",
}
OTHER: Final = "other"

_SECOND_NS: Final = 1e9
# Fields of ``recent`` in fuse_intercept.c: time, thread, user.
_REQUEST: Final = struct.Struct("=QII")
_WRITE_BACK: Final = 0xFFFFFFFF  # the constant NO_USER in fuse_intercept.c


class Sender(NamedTuple):
    """The sender of a request; *uid* is None for dirty pages that the kernel writes back."""

    thread: int  # thread ID; 0 for the kernel or another process namespace
    uid: int | None


class Recent(NamedTuple):
    """A copy of the C extension's list of the latest requests."""

    now_ns: int
    received: int  # number of all requests of the session; *requests* contains only the latest
    requests: bytes


class Senders(NamedTuple):
    """The number of requests from each sender during *span_s*."""

    span_s: float
    counts: dict[Sender, int]


def figures() -> dict[str, Any]:
    """Return the times of all answered requests in the session. Never yields to other tasks."""
    totals: dict[str, tuple[int, list[int]]] = {}
    carried = dict.fromkeys(OPERATIONS.values(), 0)
    for opcode, total_ns, size_bytes, counts in fuse_intercept.times():
        name = OPERATIONS.get(opcode, OTHER)
        carried[name] = size_bytes
        before_ns, before = totals.get(name, (0, [0] * len(counts)))
        added = [one + other for one, other in zip(before, counts, strict=True)]
        totals[name] = before_ns + total_ns, added
    waiting, oldest_ns = fuse_intercept.waiting()
    return {
        "waiting": waiting,
        "oldest_s": round(oldest_ns / _SECOND_NS, 6),
        "read_bytes": carried["read"],
        "written_bytes": carried["write"],
        "bounds_s": [bound_ns / _SECOND_NS for bound_ns in fuse_intercept.bounds_ns()],
        "operations": {
            name: {"total_s": total_ns / _SECOND_NS, "counts": counts}
            for name, (total_ns, counts) in sorted(totals.items())
        },
    }


def recent() -> Recent:
    """Return a copy of the C extension's list of last requests. Never yields to other tasks."""
    return Recent(*fuse_intercept.recent())


def senders(copy: Recent, within_s: float) -> Senders:
    """Count the requests of each sender. Call this in a thread: there may be thousands of requests.

    Args:
        copy: the last requests.
        within_s: ignore older requests.
    """
    counts: dict[Sender, int] = {}
    since_ns = copy.now_ns - int(within_s * _SECOND_NS)
    oldest_ns = copy.now_ns
    for at_ns, thread, user in _REQUEST.iter_unpack(bytes(copy.requests)):
        oldest_ns = min(oldest_ns, at_ns)
        if at_ns >= since_ns:
            sender = Sender(thread, None if user == _WRITE_BACK else user)
            counts[sender] = counts.get(sender, 0) + 1
    has_forgotten = copy.received * _REQUEST.size > len(copy.requests) and oldest_ns >= since_ns
    return Senders((copy.now_ns - oldest_ns) / _SECOND_NS if has_forgotten else within_s, counts)
