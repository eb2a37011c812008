"""A mounted filesystem whose bucket is on a local disk that is unmounted meanwhile."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.end_to_end.system_calls import drop_page_cache, refused
from tests.programs import Program

pytestmark = pytest.mark.mount


def _attach(disk: Path, bucket: Path) -> None:
    subprocess.run(["mount", "--bind", disk, bucket], check=True)


def _detach(bucket: Path) -> None:
    subprocess.run(["umount", "--lazy", bucket], check=True)


@pytest.fixture
def disk(empty: Place) -> Iterator[Path]:
    """Return a directory that is mounted at the path of the bucket."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    disk = empty.bucket.with_name("disk")
    disk.mkdir()
    empty.bucket.mkdir()
    _attach(disk, empty.bucket)
    yield disk
    if os.path.ismount(empty.bucket):
        _detach(empty.bucket)


def test_mount_continues_after_the_disk_of_its_bucket_was_unmounted(
    disk: Path, empty: Place, program: Program
) -> None:
    """Without the disk, reads of uncached files fail, and nothing is written at its mount point."""
    url, bucket, mnt = empty.url, empty.bucket, empty.mountpoint
    program.ok("mkfs", "--plain", url)
    program.ok("mount", "-o", "read_timeout=1,sync_interval=0.5", url, mnt)
    old, new = os.urandom(300_000), os.urandom(300_000)
    (mnt / "old").write_bytes(old)
    program.ok("flush", mnt)
    program.ok("dropcache", mnt)
    drop_page_cache(mnt / "old")

    _detach(bucket)
    (mnt / "new").write_bytes(new)
    os.sync()
    with refused(errno.EIO):
        (mnt / "old").read_bytes()
    assert (mnt / "new").read_bytes() == new
    assert os.listdir(bucket) == []

    _attach(disk, bucket)
    program.ok("flush", mnt)
    program.ok("dropcache", mnt)
    for name, content in (("old", old), ("new", new)):
        drop_page_cache(mnt / name)
        assert (mnt / name).read_bytes() == content
    program.ok("umount", mnt)
    assert "clean" in program.ok("fsck", "-n", "--deep", url)
