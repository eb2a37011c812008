"""Fixtures: a prepared filesystem, and hosts and disks whose power a test can cut."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta import machine
from tests.cli.conftest import empty
from tests.conftest import REQUIRED
from tests.fast_folders import FAST_PLACE
from tests.model.conftest import template
from tests.power.loop_disk import LoopDisk, why_no_loop_disk

__all__ = ["empty", "template"]


class Boots:
    """A source of home directories; each new directory has a new boot id, as after a reboot."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._count = 0

    def next_home(self) -> Path:
        """Return a new, empty home directory, and set a new boot id for mounts in it."""
        self._count += 1
        boot_id = self._home / "boot_id"
        boot_id.write_text(f"boot {self._count}\n")
        machine.BOOT_ID = boot_id
        home = self._home / f"{self._count}"
        home.mkdir()
        return home


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> Iterator[Boots]:
    """Return a source of home directories, each with a new boot id."""
    monkeypatch.setattr(machine, "BOOT_ID", machine.BOOT_ID)
    with tempfile.TemporaryDirectory(dir=FAST_PLACE) as home:
        yield Boots(Path(home))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """Return a disk whose power a test can cut."""
    why = why_no_loop_disk()
    if why and "loop" not in REQUIRED:
        pytest.skip(why)
    disk = LoopDisk(tmp_path / "disk.ext4", tmp_path / "disk")
    yield disk
    disk.unmount()
