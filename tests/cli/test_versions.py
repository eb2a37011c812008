"""The versions command, which lists the versions of a file."""

import json
import os
from typing import Any

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program


def listed(program: Program, place: Place, *words: str) -> dict[str, Any]:
    """Return the JSON that the versions command prints."""
    found = json.loads(program.ok("versions", "--json", place.url, *words))
    assert isinstance(found, dict)
    return found


def test_versions_command_refuses_a_path_that_never_existed(program: Program, place: Place) -> None:
    refused = program.run("versions", place.url, "d/../x")
    assert refused.returncode == ExitStatus.USAGE
    refused = program.run("versions", place.url, "nothing")
    assert refused.returncode == ExitStatus.USAGE
    assert "no retained point in time has a file or directory 'nothing'" in refused.stderr


@pytest.mark.mount
def test_every_version_of_a_file_is_listed_and_can_be_restored(
    program: Program, mounted: Place, tmp_path: os.PathLike[str]
) -> None:
    """Versions that were overwritten, replaced by a rename or removed can all be restored."""
    directory = mounted.mountpoint / "reports"
    directory.mkdir()
    report, draft = directory / "report.txt", directory / "draft"
    saved = [b"first", b"second version", b"third version by rename"]
    report.write_bytes(saved[0])
    program.ok("flush", mounted.mountpoint)
    report.write_bytes(saved[1])
    program.ok("flush", mounted.mountpoint)
    report.read_bytes()
    draft.write_bytes(saved[2])
    draft.rename(report)
    program.ok("flush", mounted.mountpoint)
    report.unlink()
    program.ok("flush", mounted.mountpoint)

    found = listed(program, mounted, "reports/report.txt")
    printed = program.ok("versions", mounted.url, "reports/report.txt").splitlines()
    few = program.ok("versions", "-n", "1", mounted.url, "reports/report.txt").splitlines()

    assert found["complete"]
    sizes = {(one["txg"], one["size_bytes"]) for one in found["versions"]}
    txgs = sorted({txg for txg, _ in sizes})
    assert {(txgs[number], len(saved[number])) for number in range(3)} <= sizes
    assert found["versions"][0]["changes"][-1] == "removed"
    assert [int(line.split()[0]) for line in printed] == [one["txg"] for one in found["versions"]]
    assert len(few) == 2
    assert "there are earlier versions" in few[1]
    for txg, content in zip(txgs, saved, strict=False):
        target = os.path.join(tmp_path, str(txg))
        program.ok(
            "restore", "--at", f"txg={txg}", "--to", target, mounted.url, "reports/report.txt"
        )
        with open(os.path.join(target, "reports/report.txt"), "rb") as file:
            assert file.read() == content


@pytest.mark.mount
def test_versions_command_accepts_the_path_of_a_mounted_file(
    program: Program, unsent: Place
) -> None:
    """Versions that are not uploaded yet are listed for a mount.

    After a flush the URL lists them too.
    """
    path = unsent.mountpoint / "d" / "f"
    path.parent.mkdir()
    path.write_bytes(b"first")
    program.ok("flush", unsent.mountpoint)
    path.write_bytes(b"second version")
    with path.open("rb") as file:
        os.fsync(file)

    before = json.loads(program.ok("versions", "--json", path))
    printed = program.ok("versions", path).splitlines()
    program.ok("flush", unsent.mountpoint)
    after = json.loads(program.ok("versions", "--json", path))
    of_directory = program.ok("versions", path.parent)

    assert " 1 name " in of_directory
    assert [one["uploaded"] for one in before["versions"]] == [False, True]
    assert [one["size_bytes"] for one in before["versions"]] == [14, 5]
    assert "not uploaded yet" in printed[0]
    assert after == listed(program, unsent, "d/f")
    assert [one["uploaded"] for one in after["versions"]] == [True, True]


@pytest.mark.mount
def test_versions_command_finds_a_removed_file_by_a_pattern(
    program: Program, mounted: Place
) -> None:
    directory = mounted.mountpoint / "reports"
    directory.mkdir()
    for name in ("2025.pdf", "2026.pdf", "notes", "odd\n.pdf"):
        (directory / name).write_bytes(name.encode())
    program.ok("flush", mounted.mountpoint)
    (directory / "2025.pdf").unlink()
    program.ok("flush", mounted.mountpoint)

    printed = program.ok("versions", "--pattern", directory / "*.pdf").splitlines()
    found = json.loads(program.ok("versions", "--pattern", "--json", mounted.url, "reports/*.pdf"))

    assert [line for line in printed if not line.startswith(" ")] == [
        "reports/2025.pdf",
        "reports/2026.pdf",
        "'reports/odd\\n.pdf'",
    ]
    assert "removed" in printed[1]
    assert [one["path"] for one in found["files"]] == [
        "reports/2025.pdf",
        "reports/2026.pdf",
        "reports/odd\n.pdf",
    ]


@pytest.mark.mount
def test_versions_command_lists_attribute_changes_only_on_request(
    program: Program, mounted: Place
) -> None:
    path = mounted.mountpoint / "f"
    path.write_bytes(b"x")
    program.ok("flush", mounted.mountpoint)
    path.chmod(0o600)
    os.setxattr(path, "user.comment", b"1")
    program.ok("flush", mounted.mountpoint)
    path.rename(mounted.mountpoint / "g")
    program.ok("flush", mounted.mountpoint)

    few = listed(program, mounted, "g")["versions"]
    more = listed(program, mounted, "--attributes", "g")["versions"]

    assert [one["changes"] for one in few] == [["renamed"], ["created"]]
    assert [one["changes"] for one in more] == [["renamed"], ["attributes"], ["created"]]
    assert [one["mode"] & 0o777 for one in more] == [0o600, 0o600, 0o644]
