"""The dropcache command, which removes uploaded content from the cache of a real mount."""

import json
import os
import time

import pytest

from s3fs_meta.limits import MIB
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_dropcache_command_evicts_uploaded_content(program: Program, mounted: Place) -> None:
    """After dropcache the cache is empty, and reads download the content again."""
    content = os.urandom(3 * MIB)
    (mounted.mountpoint / "f").write_bytes(content)
    program.ok("flush", mounted.mountpoint)
    found = json.loads(program.ok("dropcache", "--json", mounted.mountpoint))

    assert found == {"dropped": {"blocks": 3, "bytes": 3 * MIB}, "kept": {}}
    assert program.status(mounted.mountpoint)["cache"]["bytes"] == 0
    assert (mounted.mountpoint / "f").read_bytes() == content
    assert program.ok("dropcache", mounted.mountpoint).startswith("dropped ")


def test_dropcache_command_keeps_content_that_is_not_uploaded_yet(
    program: Program, place: Place
) -> None:
    """The dropcache command keeps content that waits for its upload, and reports the size."""
    options = "upload_limit=1K,sync_interval=1h"
    program.ok("mount", "-o", options, place.url, place.mountpoint)
    content = os.urandom(MIB)
    with (place.mountpoint / "f").open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    found = json.loads(program.ok("dropcache", "--json", place.mountpoint))

    assert found == {"dropped": {"blocks": 0, "bytes": 0}, "kept": {"not_uploaded": MIB}}
    assert (place.mountpoint / "f").read_bytes() == content
    program.ok("umount", place.mountpoint)


def test_dropcache_command_evicts_only_the_given_trees(program: Program, mounted: Place) -> None:
    """Pinned content stays in the cache.

    With --pinned it is evicted, and later downloaded again.
    """
    mnt = mounted.mountpoint
    for name in ("a", "b"):
        (mnt / name).mkdir()
        (mnt / name / "f").write_bytes(os.urandom(MIB))
    program.ok("flush", mnt)
    found = json.loads(program.ok("dropcache", "--json", mnt / "a"))
    assert found == {"dropped": {"blocks": 1, "bytes": MIB}, "kept": {}}
    assert program.status(mnt)["cache"]["bytes"] == MIB

    program.ok("warm", "--pin", mnt / "b")
    assert "pinned; see s3fs-meta pins" in program.ok("dropcache", mnt / "b" / "f", mnt / "a")
    found = json.loads(program.ok("dropcache", "--json", "--pinned", mnt / "b"))
    assert found == {"dropped": {"blocks": 1, "bytes": MIB}, "kept": {}}
    until_s = time.monotonic() + PROCESS_S_MAX
    while (cached := program.status(mnt)["cache"]["bytes"]) != MIB and time.monotonic() < until_s:
        pass
    assert cached == MIB
