"""The unpin command, which removes a pin from a real mount."""

import json

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_unpinned_tree_may_be_evicted(program: Program, mounted: Place) -> None:
    """A path inside a pinned tree cannot be unpinned, and the pin of the tree remains."""
    mnt = mounted.mountpoint
    (mnt / "top").mkdir()
    (mnt / "top" / "f").write_bytes(b"content")
    program.ok("flush", mnt)
    program.ok("warm", "--pin", mnt / "top")
    done = program.run("unpin", mnt / "top", mnt / "top" / "f")
    assert done.returncode == ExitStatus.USAGE
    assert "s3fs-meta pins lists the pinned trees" in done.stderr
    kept = json.loads(program.ok("dropcache", "--json", mnt))["kept"]
    assert kept == {"pinned": 7}

    program.ok("unpin", mnt / "top")
    assert json.loads(program.ok("pins", "--json", mnt))["pins"] == []
    assert json.loads(program.ok("dropcache", "--json", mnt))["dropped"]["bytes"] == 7
    assert program.run("unpin", mnt / "top").returncode == ExitStatus.USAGE
    assert json.loads(program.ok("warm", "--pin", "--json", mnt / "top"))["fetched_bytes"] == 7
    found = json.loads(program.ok("unpin", "--json", mnt / "top"))
    assert found == {"unpinned": [f"{mnt}/top"]}
