"""Tests of the comparison of random system calls in two directories."""

import os
from pathlib import Path

import pytest

from contrib.conformance.comparison import Side, compare
from contrib.conformance.random_calls import Call, Choice
from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import AclEntry

pytestmark = pytest.mark.usefixtures("as_root")


def test_two_directories_of_one_filesystem_show_no_difference(tmp_path: Path) -> None:
    assert compare(tmp_path / "a", tmp_path / "b", seed=1, calls=300) == ""


def test_comparison_reports_the_first_call_whose_results_differ(tmp_path: Path) -> None:
    """With a default ACL in one of two directories, new entries have different ACLs."""
    parent = tmp_path / "parent"
    parent.mkdir()
    entries = [AclEntry(acl.USER_OBJ, 7), AclEntry(acl.GROUP_OBJ, 5), AclEntry(acl.OTHER, 5)]
    os.setxattr(parent, acl.DEFAULT, acl.encode(entries))
    assert compare(tmp_path / "a", parent / "b", seed=1, calls=300).startswith("call 0: '': ext4")


@pytest.mark.parametrize(
    "call",
    [
        Call(0, "mkdir", (None, "d", 0o700)),
        Call(0, "chmod", (None, "f", 0o640)),
        Call(0, "chown", (None, "f", 1001, -1, True)),
        Call(0, "setxattr", ("f", "security.a", b"x", 0, True)),
        Call(0, "utime", (None, "f", (1, 2), True)),
    ],
)
def test_comparison_reports_a_call_that_was_made_in_only_one_directory(
    tmp_path: Path, call: Call
) -> None:
    """If a call changes an entry, each part of the entry in the recorded tree changes."""
    side = Side(tmp_path / "a")
    try:
        side.processes[0].call(Call(0, "mknod", (None, "f", 0o100600, 0)))
        side.look()
        assert side.processes[0].call(call) is None
        before = side.look()
    finally:
        side.end()
    assert before != side.tree


def test_seed_of_a_comparison_determines_its_calls() -> None:
    one, two, other = Choice(1), Choice(1), Choice(2)
    calls = [one.next() for _ in range(50)]
    assert [two.next() for _ in range(50)] == calls != [other.next() for _ in range(50)]
