"""Tests of a mount that an automounter requests, on a real autofs mount."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from s3fs_meta.mount.existing import mount_table
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import Program

pytestmark = pytest.mark.mount


@pytest.fixture
def automount(place: Place) -> Iterator[Place]:
    """Return a filesystem with an autofs mountpoint, whose automounter is this process.

    Processes in the automounter's process group can access the mountpoint immediately. Any other
    process waits until the automounter has mounted the filesystem.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    reads, writes = os.pipe()
    options = f"fd={writes},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
    path = os.fsencode(place.mountpoint)
    if libc.mount(b"test", path, b"autofs", ctypes.c_ulong(0), options.encode()) != 0:
        why = os.strerror(ctypes.get_errno())
        os.close(reads)
        os.close(writes)
        pytest.skip(f"cannot mount autofs: {why}")
    os.close(writes)
    try:
        yield place
    finally:
        os.close(reads)
        while any(one.mountpoint == str(place.mountpoint) for one in mount_table.read()):
            subprocess.run(["umount", "-l", place.mountpoint], check=True)


def test_filesystem_can_be_mounted_on_an_autofs_mountpoint(
    automount: Place, program: Program
) -> None:
    """The daemon can mount the filesystem while other processes wait for the automounter."""
    mountpoint = automount.mountpoint
    assert mount_table.is_automount(str(mountpoint))
    command = [sys.executable, "-m", "s3fs_meta", "mount", automount.url, str(mountpoint)]
    subprocess.run(
        [*command, "--cachedir", str(program.cachedir)],
        env=program.environment,
        check=True,
        timeout=PROCESS_S_MAX,
    )

    (mountpoint / "f").write_text("mounted")

    assert not mount_table.is_automount(str(mountpoint))
    pid = program.status(mountpoint)["pid"]
    assert os.getsid(pid) == pid
    program.ok("umount", mountpoint)
    assert mount_table.is_automount(str(mountpoint))
