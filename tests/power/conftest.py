"""Fixtures: a filesystem to copy, and hosts and disks after a power cut."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from s3fs_meta import machine
from s3fs_meta.clock import SystemClock
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.testing.operations import BLOCK_BYTES
from tests.cli.conftest import empty
from tests.conftest import REQUIRED
from tests.fast_folders import FAST_PLACE
from tests.power.loop_disk import LoopDisk, why_no_loop_disk

__all__ = ["empty"]


class Boots:
    """A source of home directories, each with a new boot id as after a reboot."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._count = 0

    def next_home(self) -> Path:
        """Return a new, empty directory, and set a new boot id for mounts in it."""
        self._count += 1
        boot_id = self._home / "boot_id"
        boot_id.write_text(f"boot {self._count}\n")
        machine.BOOT_ID = boot_id
        home = self._home / f"{self._count}"
        home.mkdir()
        return home


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> Iterator[Boots]:
    """Return an object that creates home directories on new boots."""
    monkeypatch.setattr(machine, "BOOT_ID", machine.BOOT_ID)
    with tempfile.TemporaryDirectory(dir=FAST_PLACE) as home:
        yield Boots(Path(home))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    """Return a store with an empty filesystem, which each test run copies."""
    return trio.run(_make_template, tmp_path_factory.mktemp("mkfs"))


async def _make_template(home: Path) -> MemoryStore:
    store = MemoryStore()
    wanted = NewFilesystem("power", BLOCK_BYTES, 4096, None)
    await make_filesystem(store, wanted, home, SystemClock())
    return store


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """Return a disk whose power a test can cut."""
    why = why_no_loop_disk()
    if why and "loop" not in REQUIRED:
        pytest.skip(why)
    disk = LoopDisk(tmp_path / "disk.ext4", tmp_path / "disk")
    yield disk
    disk.unmount()
