"""Tests of the counts of billed requests, which are stored in the state directory."""

import json
from pathlib import Path
from typing import Any

import pytest

from s3fs_meta.state_paths import locate
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount

CLASSES = ("put", "list", "get", "delete")


def counts(program: Program, place: Place) -> dict[str, list[int]]:
    """Return the stored counts of today, and of yesterday if midnight has just passed."""
    path: Path = locate(place.url, program.cachedir) / "requests.json"
    found: dict[str, list[int]] = {}
    for day in json.loads(path.read_text())["days"].values():
        for name, numbers in day["requests"].items():
            before = found.get(name, [0, 0, 0])
            found[name] = [one + other for one, other in zip(before, numbers, strict=True)]
    return found


def write_and_read(program: Program, place: Place) -> dict[str, Any]:
    """Write a file, unmount, mount and read the file; return the status of the mount."""
    (place.mountpoint / "f").write_bytes(b"x" * 100_000)
    program.ok("umount", place.mountpoint)
    program.ok("mount", place.url, place.mountpoint)
    assert (place.mountpoint / "f").read_bytes() == b"x" * 100_000
    return program.status(place.mountpoint)


def test_store_requests_of_all_mounts_and_commands_are_added_together(
    program: Program, mounted: Place
) -> None:
    """Status reports today's requests. Requests of fsck are counted with a separate cause."""
    figures = write_and_read(program, mounted)
    program.ok("umount", mounted.mountpoint)
    before = counts(program, mounted)
    program.ok("fsck", "-n", mounted.url)
    program.ok("log", mounted.url)
    after = counts(program, mounted)

    assert before["data put"][0] == 1
    # Each mount uploads a fence record, and the first mount also uploads the file.
    assert before["changelogs put"][0] >= 3
    assert before["lease put"][0] == 4  # The two mounts each acquired and released the lease.
    assert sum(figures["today"][f"{kind}_requests"] for kind in CLASSES) <= sum(
        numbers[0] for numbers in before.values()
    )
    assert figures["today"]["put_requests"] >= 6
    assert figures["today"]["sent_bytes"] > 0
    assert after["fsck get"][0] > 0
    written = {name for name in after if name.endswith(" put")}
    assert {name: after[name] for name in written} == {name: before[name] for name in written}
    assert after["mount get"][0] > before["mount get"][0]  # The log command sent GET requests.


def test_store_requests_of_status_with_a_url_are_not_counted(
    program: Program, mounted: Place
) -> None:
    program.ok("umount", mounted.mountpoint)
    before = counts(program, mounted)
    program.ok("status", mounted.url)
    assert counts(program, mounted) == before


@pytest.mark.s3
def test_transferred_bytes_of_store_requests_are_counted(
    program: Program, on_server: Place
) -> None:
    figures = write_and_read(program, on_server)
    program.ok("umount", on_server.mountpoint)
    found = counts(program, on_server)

    assert found["data put"][0] == 1
    assert found["data put"][1] > 0
    assert found["mount list"][2] > 0  # Replies to LIST requests were counted in bytes.
    store = figures["store"]
    assert figures["today"]["get_requests"] >= store["get"]["requests"]
    # The mount deleted the object that probes conditional writes.
    assert found["mount delete"][0] >= 1
