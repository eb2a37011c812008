"""The command fsck."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Place, Program


def test_clean_filesystem_has_status_0(program: Program, place: Place) -> None:
    """And one line."""
    assert program.ok("fsck", "-n", place.url) == f"{place.url}: clean\n"


def test_json_is_for_programs(program: Program, place: Place) -> None:
    """One object."""
    found = json.loads(program.ok("fsck", "-n", "--json", place.url))

    assert found == {"url": place.url, "exit_status": 0, "invariants": [], "notes": []}


def test_place_without_a_filesystem_has_the_status_of_a_failed_check(
    program: Program, tmp_path: Path
) -> None:
    """fsck(8) says 8."""
    assert program.run("fsck", "-n", f"local://{tmp_path}").returncode == 8


def test_deleting_objects_has_to_go_with_repairs(program: Program, place: Place) -> None:
    """-n promises to change nothing."""
    assert program.run("fsck", "-n", "--delete-unknown", place.url).returncode == 16


def test_deep_check_reads_every_pack(program: Program, place: Place) -> None:
    """A healthy one is clean."""
    assert program.run("fsck", "-n", "--deep", "--verbose", place.url).returncode == 0


@pytest.mark.mount
def test_missing_pack_is_found_repaired_and_then_clean(program: Program, mounted: Place) -> None:
    """4 with -n, 1 with -y, 0 ever after; without local copies the content is lost, and said."""
    (mounted.mountpoint / "f").write_bytes(b"z" * 70_000)
    program.ok("umount", mounted.mountpoint)
    for pack in mounted.bucket.glob("pack/*/*"):
        pack.unlink()
    program.cachedir.rename(program.cachedir.with_name("lost"))

    assert program.run("fsck", "-n", mounted.url).returncode == 4
    repaired = program.run("fsck", "-y", mounted.url)
    assert repaired.returncode == 1
    assert "/f" in repaired.stdout
    assert program.run("fsck", "-n", mounted.url).returncode == 0


@pytest.mark.mount
def test_mounted_filesystem_is_only_looked_at(program: Program, mounted: Place) -> None:
    """-n works beside the mount; repairs are refused."""
    (mounted.mountpoint / "f").write_bytes(b"z")

    assert program.run("fsck", "-n", mounted.url).returncode == 0
    refused = program.run("fsck", "-y", mounted.url)
    assert refused.returncode == 8
    assert "unmount it" in refused.stderr
