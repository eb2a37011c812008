"""Tests of how many kernel requests and store requests each operation causes.

docs/design/performance.md, "Requests", lists the expected numbers. A higher number is a regression.
After a change to a lower number, the page must be updated.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.limits import SEAL_LINGER_S
from tests.cli.conftest import Place
from tests.programs import ROOT, QuickProgram

pytestmark = pytest.mark.mount

COUNT = 50
BYTES = b"x" * 4096
CLOCK_MOVED = object()

Requests = dict[str, float]


def _write(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, BYTES)
    os.close(fd)


def _create_and_write(path: Path) -> object:
    """Create and write a file; return CLOCK_MOVED if the kernel's clock ticked meanwhile.

    The clock ticks 100 to 1,000 times a second. The kernel answers fstat(2) without a request.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    made = os.fstat(fd).st_mtime_ns
    os.write(fd, BYTES)
    moved = os.fstat(fd).st_mtime_ns != made
    os.close(fd)
    return CLOCK_MOVED if moved else None


def _read(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, len(BYTES))
    os.close(fd)


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


# The test completes each operation on all files of a directory before the next operation.
OPERATIONS: list[tuple[str, Callable[[Path], object], Requests]] = [
    ("create", _create, {"getattr": 1, "lookup": 1, "create": 1, "release": 1}),
    (
        "create and write",
        lambda path: _create_and_write(path.with_suffix(".w")),
        {"getattr": 1, "lookup": 1, "create": 1, "getxattr": 1, "write": 1, "release": 1},
    ),
    (
        "write",
        lambda path: _write(path.with_suffix(".w")),
        {"open": 1, "write": 1, "setattr": 1, "release": 1},
    ),
    ("read", lambda path: _read(path.with_suffix(".w")), {"open": 1, "release": 1}),
    ("stat after a read", lambda path: path.with_suffix(".w").stat(), {"getattr": 1}),
    ("stat", lambda path: path.with_suffix(".w").stat(), {}),
    ("stat of a missing name", lambda path: path.with_suffix(".none").exists(), {"lookup": 1}),
    ("stat of the same missing name again", lambda path: path.with_suffix(".none").exists(), {}),
    (
        "rename",
        lambda path: path.rename(path.with_suffix(".r")),
        {"getattr": 1, "lookup": 1, "rename": 1, "setattr": 1},
    ),
    (
        "link",
        lambda path: path.with_suffix(".l").hardlink_to(path.with_suffix(".r")),
        {"getattr": 1, "lookup": 1, "link": 1, "setattr": 1},
    ),
    (
        "unlink",
        lambda path: path.with_suffix(".l").unlink(),
        {"getattr": 1, "unlink": 1, "setattr": 1},
    ),
    (
        "mkdir",
        lambda path: path.with_suffix(".d").mkdir(),
        {"getattr": 1, "lookup": 1, "mkdir": 1},
    ),
    ("rmdir", lambda path: path.with_suffix(".d").rmdir(), {"getattr": 1, "rmdir": 1, "forget": 1}),
    (
        "symlink",
        lambda path: path.with_suffix(".s").symlink_to("x"),
        {"getattr": 1, "lookup": 1, "symlink": 1},
    ),
    ("readlink", lambda path: path.with_suffix(".s").readlink(), {"readlink": 1}),
    ("chmod", lambda path: path.with_suffix(".r").chmod(0o600), {"setattr": 1}),
]


def test_each_file_operation_causes_the_documented_kernel_requests(
    mounted: Place, program: QuickProgram
) -> None:
    directory = mounted.mountpoint / "d"
    directory.mkdir()
    found: dict[str, Requests] = {}
    for name, operation, _expected in OPERATIONS:
        before = program.status(mounted.mountpoint)["requests"]
        moved = [operation(directory / str(number)) for number in range(COUNT)].count(CLOCK_MOVED)
        after = program.status(mounted.mountpoint)["requests"]
        after["setattr"] -= moved
        each = {kind: round((after[kind] - before[kind]) / COUNT) for kind in after}
        found[name] = {kind: count for kind, count in each.items() if count}

    for name, _operation, requests in OPERATIONS:
        assert found[name] == requests, name


def test_kernel_requests_the_file_capabilities_of_a_written_file_only_once(
    mounted: Place, program: QuickProgram
) -> None:
    """The kernel requests ``security.capability`` once per file, not once per write(2)."""
    before = program.status(mounted.mountpoint)["requests"]["getxattr"]
    with open(mounted.mountpoint / "f", "wb", buffering=0) as file:
        file.writelines(BYTES for _ in range(COUNT))
    asked = program.status(mounted.mountpoint)["requests"]["getxattr"]
    assert asked - before == 1


def test_performance_page_lists_the_kernel_requests_of_every_operation() -> None:
    text = (ROOT / "docs/design/performance.md").read_text("utf-8")
    for name, _operation, expected in OPERATIONS:
        requests = ", ".join(kind.upper() for kind in expected) or "none"
        assert f"| {name} | {requests} |" in text


def test_writing_many_small_files_sends_few_put_requests(
    mounted: Place, program: QuickProgram
) -> None:
    """Writing 1,000 files of 4 KiB takes at most six uploads to the store."""
    _mount_anew(mounted, program, "-o", "sync_interval=600")
    before = _requests(mounted, program, "put", "create", "replace")
    began_s = time.monotonic()
    for number in range(1000):
        (mounted.mountpoint / str(number)).write_bytes(b"%d" % number * 1000)
    program.ok("flush", mounted.mountpoint)
    more = 2 * _packs_of_a_slow_machine(began_s)
    assert _requests(mounted, program, "put", "create", "replace") - before <= 6 + more


def test_reading_many_small_files_sends_few_get_requests(
    mounted: Place, program: QuickProgram
) -> None:
    """Reading 500 files of 4 KiB in order, without cached blocks, takes at most four GETs.

    The long interval between syncs limits the number of changelogs, however long the writes take.
    During the reads it prevents uploads of access times, before which the lease is read.
    """
    program.ok("umount", mounted.mountpoint)
    program.ok("mount", mounted.url, mounted.mountpoint, "-o", "sync_interval=600")
    content = random.Random(1)
    began_s = time.monotonic()
    for number in range(500):
        (mounted.mountpoint / f"{number:03}").write_bytes(content.randbytes(4096))
    more = _packs_of_a_slow_machine(began_s)
    _mount_anew(mounted, program, "-o", "sync_interval=600")

    before = _requests(mounted, program, "get", "get_range")
    assert before <= 12  # The mount reads superblock, lease, image and five changelogs.
    for number in range(500):
        assert len((mounted.mountpoint / f"{number:03}").read_bytes()) == 4096
    assert _requests(mounted, program, "get", "get_range") - before <= 4 + more


@pytest.mark.parametrize("options", ["rw", "ro"])
def test_reading_a_large_file_sends_few_get_requests(
    mounted: Place, program: QuickProgram, options: str
) -> None:
    """Reading 40 MiB in order, without cached blocks, takes at most twelve GETs.

    Writable and read-only mounts are tested: on a read-only mount, the kernel does not report
    open(2) to the daemon.
    """
    content = random.Random(1).randbytes(40 << 20)
    (mounted.mountpoint / "large").write_bytes(content)
    _mount_anew(mounted, program, "-o", options)

    before = _requests(mounted, program, "get", "get_range")
    assert (mounted.mountpoint / "large").read_bytes() == content
    assert _requests(mounted, program, "get", "get_range") - before <= 12


def test_second_read_on_a_read_only_mount_sends_no_kernel_request(
    mounted: Place, program: QuickProgram
) -> None:
    (mounted.mountpoint / "f").write_bytes(BYTES)
    program.ok("umount", mounted.mountpoint)
    program.ok("mount", mounted.url, mounted.mountpoint, "-o", "ro")
    _read(mounted.mountpoint / "f")
    before = program.status(mounted.mountpoint)["requests"]
    for _ in range(COUNT):
        _read(mounted.mountpoint / "f")
    after = program.status(mounted.mountpoint)["requests"]

    assert not any(round((after[kind] - before[kind]) / COUNT) for kind in after)


def _packs_of_a_slow_machine(began_s: float) -> int:
    """Return how many packs were uploaded because blocks waited longer than SEAL_LINGER_S."""
    return int((time.monotonic() - began_s) / SEAL_LINGER_S)


def _mount_anew(place: Place, program: QuickProgram, *options: str) -> None:
    """Unmount, and then mount again as a host without local state would."""
    program.ok("umount", place.mountpoint)
    program.cachedir = program.cachedir.with_name("other-host")
    program.ok("mount", place.url, place.mountpoint, *options)


def _requests(place: Place, program: QuickProgram, *methods: str) -> int:
    """Return how many requests with these methods the mount has sent to the store."""
    store = program.status(place.mountpoint)["store"]
    return sum(store.get(method, {}).get("requests", 0) for method in methods)
