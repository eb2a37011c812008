"""Billed requests of real mounts and commands are counted in the state directory."""

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
    """Return the counts of the only day in the file, or of two days if midnight has passed."""
    path: Path = locate(place.url, program.cachedir) / "requests.json"
    found: dict[str, list[int]] = {}
    for day in json.loads(path.read_text())["days"].values():
        for name, numbers in day["requests"].items():
            before = found.get(name, [0, 0, 0])
            found[name] = [one + other for one, other in zip(before, numbers, strict=True)]
    return found


def write_and_read(program: Program, place: Place) -> dict[str, Any]:
    """Write a file, unmount, mount on an empty cache, read the file, and return the figures."""
    (place.mountpoint / "f").write_bytes(b"x" * 100_000)
    program.ok("umount", place.mountpoint)
    program.ok("mount", place.url, place.mountpoint)
    assert (place.mountpoint / "f").read_bytes() == b"x" * 100_000
    return program.status(place.mountpoint)


def test_requests_of_all_mounts_and_commands_are_summed(program: Program, mounted: Place) -> None:
    """Status shows the requests of today, and requests of fsck have a separate cause."""
    figures = write_and_read(program, mounted)
    program.ok("umount", mounted.mountpoint)
    before = counts(program, mounted)
    program.ok("fsck", "-n", mounted.url)
    program.ok("log", mounted.url)
    after = counts(program, mounted)

    assert before["data put"][0] == 1
    assert before["changelogs put"][0] >= 3  # the fence record of each mount, and the file
    assert before["lease put"][0] == 4  # Both mounts acquired and released the lease.
    assert sum(figures["today"][f"{kind}_requests"] for kind in CLASSES) <= sum(
        numbers[0] for numbers in before.values()
    )
    assert figures["today"]["put_requests"] >= 6
    assert figures["today"]["sent_bytes"] > 0
    assert after["fsck get"][0] > 0
    written = {name for name in after if name.endswith(" put")}
    assert {name: after[name] for name in written} == {name: before[name] for name in written}
    assert after["mount get"][0] > before["mount get"][0]  # log


def test_status_of_a_url_saves_no_counts(program: Program, mounted: Place) -> None:
    program.ok("umount", mounted.mountpoint)
    before = counts(program, mounted)
    program.ok("status", mounted.url)
    assert counts(program, mounted) == before


@pytest.mark.s3
def test_requests_to_a_server_are_counted_by_their_answers(
    program: Program, on_server: Place
) -> None:
    figures = write_and_read(program, on_server)
    program.ok("umount", on_server.mountpoint)
    found = counts(program, on_server)

    assert found["data put"][:2] == [1, found["data put"][1]]
    assert found["data put"][1] > 0
    assert found["mount list"][2] > 0  # bodies of list replies
    store = figures["store"]
    assert figures["today"]["get_requests"] >= store["get"]["requests"]
    assert found["mount delete"][0] >= 1  # deletion of the probe object
