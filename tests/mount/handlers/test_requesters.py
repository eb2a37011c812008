"""Tests of finding the processes that send the most requests to a mount."""

import os
import struct
import threading
from pathlib import Path
from typing import Any

from s3fs_meta.fuse.request_times import Recent, Sender
from s3fs_meta.mount.handlers.requesters import (
    WRITE_BACK,
    Process,
    process_of,
    ranked,
    supplementary_groups,
)
from s3fs_meta.mount.limits import REQUESTERS_SHOWN_MAX

SECOND_NS = 10**9
NO_THREAD = 2**22  # This number is above the largest possible PID.


def _copy(*senders: tuple[int, int]) -> Recent:
    """Return a recorded list of requests that were sent one second ago."""
    content = b"".join(struct.pack("=QII", 9 * SECOND_NS, *one) for one in senders)
    return Recent(10 * SECOND_NS, len(senders), content)


def test_kernel_requests_of_threads_are_attributed_to_their_process() -> None:
    found: list[dict[str, Any]] = []

    def find() -> None:
        thread = threading.get_native_id()
        found.append(ranked(_copy((thread, 5), (os.getpid(), 5), (os.getpid(), 5)), 5))

    other = threading.Thread(target=find)
    other.start()
    other.join()

    name = Path("/proc/self/comm").read_text().strip()
    assert found[0]["processes"] == [{"pid": os.getpid(), "name": name, "uid": 5, "requests": 3}]
    assert found[0]["requests"] == 3
    assert found[0]["span_s"] == 5


def test_processes_with_the_most_requests_are_listed_in_order() -> None:
    many = [(NO_THREAD + number, 0) for number in range(100)]

    found = ranked(_copy(*many, (NO_THREAD + 50, 0)), 5)

    assert found["processes"][0]["pid"] == NO_THREAD + 50
    assert len(found["processes"]) == REQUESTERS_SHOWN_MAX
    assert found["requests"] == 101


def test_requests_of_exited_and_unknown_processes_are_labelled() -> None:
    assert process_of(Sender(NO_THREAD, 7)) == Process(NO_THREAD, "(ended)", 7)
    assert process_of(Sender(0, 7)) == Process(None, "(in another process namespace)", 7)
    assert process_of(Sender(0, None)) == Process(None, WRITE_BACK, None)


def test_supplementary_groups_in_proc_equal_the_result_of_getgroups() -> None:
    assert supplementary_groups(os.getpid()) == frozenset(os.getgroups())


def test_exited_process_has_no_supplementary_groups() -> None:
    assert supplementary_groups(2**22 + 1) == frozenset()
