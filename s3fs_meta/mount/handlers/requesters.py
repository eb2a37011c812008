"""The processes that send the most requests to a mount, and their groups.

Owns: finding the process of a thread, its name and its supplementary groups. Does not know:
how requests are recorded (``fuse.request_times``). Nothing is computed until a command needs it.
"""

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from s3fs_meta.background_task import in_thread
from s3fs_meta.fuse import request_times
from s3fs_meta.fuse.request_times import Recent, Sender
from s3fs_meta.mount.limits import REQUESTER_THREADS_MAX, REQUESTERS_SHOWN_MAX

WRITE_BACK: Final = "write-back by the kernel"
_ENDED: Final = "(ended)"
_GROUPS: Final = re.compile(rb"^Groups:[ \t]*([0-9 ]*)$", re.MULTILINE)
_OTHER_NAMESPACE: Final = "(in another process namespace)"


class Process(NamedTuple):
    """A process that sends requests, or several indistinguishable processes."""

    pid: int | None
    name: str
    uid: int | None


async def find(within_s: float) -> dict[str, Any]:
    """Return the processes that have sent the most requests within the last *within_s* seconds."""
    return await in_thread(ranked, request_times.recent(), within_s)


def ranked(copy: Recent, within_s: float) -> dict[str, Any]:
    """Return the processes with the most requests in descending order. Call it in a thread."""
    span_s, counts = request_times.senders(copy, within_s)
    by_count = sorted(counts.items(), key=lambda one: -one[1])
    found: dict[Process, int] = {}
    for sender, count in by_count[:REQUESTER_THREADS_MAX]:
        process = process_of(sender)
        found[process] = found.get(process, 0) + count
    ranking = sorted(found.items(), key=lambda one: -one[1])[:REQUESTERS_SHOWN_MAX]
    return {
        "span_s": round(span_s, 3),
        "requests": sum(counts.values()),
        "processes": [{**one._asdict(), "requests": count} for one, count in ranking],
    }


def process_of(sender: Sender) -> Process:
    """Return the process of a thread that sent a request; an exited process has no name."""
    if sender.uid is None:
        return Process(None, WRITE_BACK, None)
    if sender.thread == 0:
        return Process(None, _OTHER_NAMESPACE, sender.uid)
    try:
        status = Path(f"/proc/{sender.thread}/status").read_text(errors="replace")
        fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
        pid = int(fields["Tgid"])
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except (OSError, KeyError, ValueError):
        return Process(sender.thread, _ENDED, sender.uid)
    return Process(pid, name, sender.uid)


def supplementary_groups(pid: int) -> frozenset[int]:
    """Return the supplementary groups of a process; an exited process has no groups.

    Source: proc_pid_status(5).
    """
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return frozenset()
    match = _GROUPS.search(status)
    return frozenset(int(word) for word in match[1].split()) if match else frozenset()
