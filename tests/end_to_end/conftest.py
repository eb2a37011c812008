"""Fixtures with real mounts, made by the command as users run it."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place, empty, mounted, place, quick, unsent
from tests.conftest import REQUIRED
from tests.end_to_end.another_user import another_user
from tests.programs import QuickProgram
from tests.servers import S3Server, s3_server, server_folder

__all__ = [
    "another_user",
    "empty",
    "mounted",
    "place",
    "quick",
    "s3_server",
    "server_folder",
    "unsent",
]

_numbers = itertools.count(1)


@pytest.fixture
def program(tmp_path: Path) -> QuickProgram:
    """Return a runner of the command with its own local state."""
    return QuickProgram(tmp_path / "state")


@pytest.fixture(scope="session")
def bucket(s3_server: S3Server) -> S3Server:
    """Return a server with one bucket."""
    s3_server.make_bucket("bucket")
    return s3_server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the root of a mount that all tests of a module share, accessible to all users.

    At the end of the module, the mount must unmount cleanly and fsck must find no damage.
    """
    base = tmp_path_factory.mktemp("shared")
    mnt, program, url = base / "mnt", QuickProgram(base / "state"), f"local://{base}/bucket"
    mnt.mkdir()
    program.ok("mkfs", "--plain", url)
    for_all = ["-o", "allow_other"] if os.geteuid() == 0 else []
    program.ok("mount", *for_all, url, mnt)
    try:
        yield mnt
        assert program.status(mnt)["state"] == "serving"
        program.ok("umount", mnt)
        program.ok("fsck", "-n", url)
    finally:
        if mount_table.find(str(mnt)) is not None:
            subprocess.run(["fusermount3", "-u", "-z", mnt], check=True)


@pytest.fixture
def folder(shared: Path) -> Path:
    """Return an empty directory on the shared mount, used only by this test."""
    path = shared / f"test-{next(_numbers)}"
    path.mkdir()
    path.chmod(0o755)
    return path


@pytest.fixture
def acl_tools() -> None:
    """Skip a test if setfacl or getfacl is missing, unless they are required."""
    if shutil.which("setfacl") is None and "acl" not in REQUIRED:
        pytest.skip("setfacl is not installed (Debian package acl)")


URL = "s3://bucket/home"


@pytest.fixture
def on_server(
    empty: Place, program: QuickProgram, bucket: S3Server, request: pytest.FixtureRequest
) -> Place:
    """Return a mounted encrypted filesystem in the server's bucket."""
    place = empty._replace(url=f"{URL}/{request.node.name}")
    program.environment |= {
        **bucket.environment(),
        "AWS_ENDPOINT_URL": bucket.endpoint_url,
        "S3FS_META_PASSPHRASE": "correct horse battery staple",
    }
    program.ok("mkfs", place.url)
    program.ok("mount", place.url, place.mountpoint)
    return place
