"""Simulated hosts that mount the same filesystem, each with its own local state."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from s3fs_meta.mount.existing import mount_table
from tests.polling import wait_until
from tests.programs import QuickProgram


class Host(NamedTuple):
    """A host on which the filesystem is mounted."""

    program: QuickProgram
    mnt: Path

    @property
    def pid(self) -> int:
        """Return the process id of the daemon."""
        return int(self.program.status(self.mnt)["pid"])

    def ship(self) -> int:
        """Upload all changes; return the txg that contains them."""
        return int(json.loads(self.program.ok("flush", "--json", self.mnt))["txg"])

    def wait_for(self, txg: int) -> None:
        """Wait until the mount of this host shows a given txg."""
        wait_until(
            lambda: self.program.status(self.mnt)["chain"]["txg"] >= txg,
            f"the host does not show txg {txg}",
        )


@contextmanager
def host(base: Path, url: str, name: str, words: str) -> Iterator[Host]:
    """Mount as on another host, with separate local state."""
    host = Host(QuickProgram(base / f"state-{name}"), base / f"mnt-{name}")
    host.mnt.mkdir()
    host.program.ok("mount", "-o", words, url, host.mnt)
    try:
        yield host
    finally:
        if mount_table.find(str(host.mnt)) is not None:
            with contextlib.suppress(AssertionError):
                host.program.ok("umount", host.mnt)
        if mount_table.find(str(host.mnt)) is not None:
            subprocess.run(["fusermount3", "-u", "-z", host.mnt], check=True)
