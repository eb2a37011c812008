"""Fixtures for all tests, and requirements of tests with markers."""

import gc
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import hypothesis
import pytest

# The FUSE extension replaces symbols of libfuse, so it must be loaded before any test imports
# pyfuse3.
import s3fs_meta.fuse.extension  # noqa: F401
from s3fs_meta import machine
from tests.fast_folders import FAST_PLACE
from tests.private_mounts import make_private
from tests.statements import watch

# No test may fail only because the machine is slow.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

TEMPORARY_BYTES_MIN = 4 << 30  # Two test processes use less than 1 GiB.
EXCLUSIONS = re.compile(r"not \w+( and not \w+)*")
MODULE_MARKS = re.compile(r"^pytestmark = .*", re.MULTILINE)
MARK = re.compile(r"pytest\.mark\.(\w+)")
REQUIRED = frozenset(filter(None, os.environ.get("S3FS_META_TEST_REQUIRES", "").split(",")))


def _why_no_mount() -> str:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    return ""


def pytest_configure() -> None:
    """Make the mounts of the tests private, and let commands that tests start receive Ctrl-C.

    If a shell runs the tests as a background job, commands would otherwise ignore SIGINT.
    """
    make_private()
    apsw.connection_hooks.append(watch)
    _keep_temporary_files_in_memory()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep_temporary_files_in_memory() -> None:
    """Create ``tmp_path`` in memory, because fsync on a disk would take most of the tests' time.

    The option ``--basetemp`` or the variable PYTEST_DEBUG_TEMPROOT selects another directory.
    """
    if FAST_PLACE and shutil.disk_usage(FAST_PLACE).free >= TEMPORARY_BYTES_MIN:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", FAST_PLACE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore a test file whose marker is excluded by the option ``-m 'not …'``.

    Importing these files and creating their tests would take a third of the collection time.
    """
    expression = config.getoption("markexpr")
    if collection_path.suffix != ".py" or not EXCLUSIONS.fullmatch(expression):
        return None
    marks = MODULE_MARKS.search(collection_path.read_text())
    excluded = set(expression.split()) - {"not", "and"}
    return True if marks and excluded & set(MARK.findall(marks[0])) else None


def pytest_collection() -> None:
    """Disable garbage collection while pytest collects the tests, which creates many objects."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt the collected tests from Python's garbage collector, to make its runs fast."""
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a mount if this host cannot mount, unless mounts are required."""
    why = _why_no_mount()
    if not why or "mount" in REQUIRED:
        return
    for item in items:
        if item.get_closest_marker("mount"):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def as_root() -> None:
    """Skip a test that needs root privileges."""
    if os.geteuid() != 0 and "root" not in REQUIRED:
        pytest.skip("the test needs root privileges")


@pytest.fixture
def reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that changes the boot id of this host, as a reboot does."""

    def change() -> None:
        boot_id = tmp_path / "boot_id"
        boot_id.write_text("another boot\n")
        monkeypatch.setattr(machine, "BOOT_ID", boot_id)

    return change


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the mountpoint of a 1 MiB filesystem, which a test can fill completely."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("no permission to mount a small filesystem")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
