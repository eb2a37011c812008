"""Tests of the compiled extension: its build, its import before pyfuse3, non-blocking reads."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from s3fs_meta.console.exits import MOUNT_FAILED, ExitStatus
from s3fs_meta.fuse import extension
from s3fs_meta.fuse.request_loop import Gate
from tests.fuse.conftest import opened, until_ready
from tests.polling import until
from tests.programs import ROOT

pytestmark = pytest.mark.thorough

MISSING = """
import sys
sys.modules["s3fs_meta.fuse.fuse_intercept"] = None
"""
OLD = """
import sys, types
sys.modules["s3fs_meta.fuse.fuse_intercept"] = types.ModuleType("fuse_intercept")
"""
ORDER = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in {"pyfuse3", "s3fs_meta.fuse.fuse_intercept"}:
            print(name)
sys.meta_path.insert(0, Finder())
import s3fs_meta.cli.entry
from s3fs_meta.fuse import kernel_cache
"""
LIES = 3


def ran(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python code in a separate process."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


def test_extension_is_imported_before_the_pyfuse3_library() -> None:
    assert ran(ORDER).stdout.split() == ["s3fs_meta.fuse.fuse_intercept", "pyfuse3"]


@pytest.mark.parametrize(
    ("module", "words", "status"),
    [("cli.entry", ["mount"], ExitStatus.SETTINGS), ("cli.mount_helper", [], MOUNT_FAILED)],
    ids=["s3fs-meta", "mount.s3fs-meta"],
)
def test_mount_without_the_extension_fails_with_one_line(
    tmp_path: Path, module: str, words: list[str], status: int
) -> None:
    """The error names a package that a build of the extension needs."""
    code = f"{MISSING}from s3fs_meta.{module} import main\nsys.exit(main())"

    done = ran(code, *words, f"local://{tmp_path}", str(tmp_path))

    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert "the compiled extension cannot be loaded" in done.stderr
    assert "libfuse3-dev" in done.stderr


@pytest.mark.parametrize("found", ["", 'sys.modules[NAME].SOURCE_SUM = "0" * 64\n'])
def test_extension_of_another_version_is_refused_with_one_line(tmp_path: Path, found: str) -> None:
    """An outdated extension may lack functions, or may have functions that behave differently."""
    found = found.replace("NAME", '"s3fs_meta.fuse.fuse_intercept"')
    code = f"{OLD}{found}from s3fs_meta.cli.entry import main\nsys.exit(main())"

    done = ran(code, "mount", f"local://{tmp_path}", str(tmp_path))

    assert done.returncode == ExitStatus.SETTINGS
    assert done.stderr.count("\n") == 1
    assert (
        "(the extension was built from a different version of s3fs-meta); build it: " in done.stderr
    )


def test_extension_contains_the_hash_of_its_source() -> None:
    """After a change of fuse_intercept.c, the new hash must be written to fuse/extension.py."""
    source = ROOT / "s3fs_meta" / "fuse" / "fuse_intercept.c"

    assert hashlib.sha256(source.read_bytes()).hexdigest() == extension.SOURCE_SUM
    assert extension.fuse_intercept.SOURCE_SUM == extension.SOURCE_SUM


def test_help_of_fsck_is_printed_without_the_extension() -> None:
    code = f"{MISSING}from s3fs_meta.cli.entry import main\nsys.exit(main())"

    assert ran(code, "fsck", "--help").returncode == 0


@pytest.mark.parametrize("step", ["dist_info", "build_ext"])
def test_build_error_without_headers_names_the_missing_packages(tmp_path: Path, step: str) -> None:
    """A build without a compiler or headers fails early and names the missing packages."""
    pytest.importorskip("setuptools")
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", step],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
    )

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: s3fs-meta has a compiled extension")
    assert last.endswith("apt-get install gcc libc6-dev pkg-config libfuse3-dev")


@pytest.mark.mount
async def test_request_that_the_kernel_withdrew_does_not_block_the_event_loop(
    tmp_path: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the gate reports a request that no longer exists, the read of /dev/fuse does not block."""
    lies = 0
    really = Gate.is_ready

    def lie(gate: Gate, wait_s: float) -> bool:
        nonlocal lies
        lies += 1
        return lies <= LIES or really(gate, wait_s)

    async with opened(tmp_path) as made, trio.open_nursery() as nursery:
        await nursery.start(until_ready, made.operations, mountpoint)
        await trio.to_thread.run_sync(os.statvfs, mountpoint)
        monkeypatch.setattr(Gate, "is_ready", lie)
        await trio.to_thread.run_sync(os.statvfs, mountpoint)
        await until(lambda: lies > LIES)
        nursery.cancel_scope.cancel()
