"""Fixtures for mounts of a user who is not root."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.mount.existing import mount_table

_UID: Final = 65534
AS_ANOTHER_USER: Final = ("setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups")
# setpriv can start Python even if only root may read the interpreter.
# Python is therefore started a second time, as the unprivileged user.
_CAN: Final = """
import os, subprocess, sys, s3fs_meta
os.close(os.open("/dev/fuse", os.O_RDWR))
subprocess.run([sys.executable, "-c", ""], check=True)
"""


class AnotherUser:
    """An unprivileged user, and a directory with the user's empty filesystem and mountpoint."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.url, self.mountpoint = f"local://{home}/bucket", home / "mnt"
        self.python("os.mkdir('mnt')")
        self.program("mkfs", "--plain", self.url)

    def python(self, code: str) -> str:
        """Run Python code as the unprivileged user; return its output. The code must succeed."""
        return self._run("-c", f"import os; {code}")

    def program(self, *words: str) -> str:
        """Run one command as the unprivileged user; return its output. The command must succeed."""
        return self._run("-m", "s3fs_meta", *words, "--cachedir", str(self.home / "state"))

    def _run(self, *words: str) -> str:
        command = [*AS_ANOTHER_USER, sys.executable, *words]
        done = subprocess.run(command, cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def another_user() -> Iterator[AnotherUser]:
    """Return an unprivileged user who can mount; unmount the user's mount after the test."""
    able = [*AS_ANOTHER_USER, sys.executable, "-c", _CAN]
    if os.geteuid() != 0 or subprocess.run(able, capture_output=True, check=False).returncode:
        pytest.skip("on this host no other user can run the program and open /dev/fuse")
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, _UID, _UID)
        made = AnotherUser(Path(name))
        yield made
        if mount_table.find(str(made.mountpoint)) is not None:
            subprocess.run(["fusermount3", "-u", "-z", made.mountpoint], check=True)
