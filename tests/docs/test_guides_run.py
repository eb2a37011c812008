"""Tests of the commands of the guides, whose output must match the text of the pages."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REQUIRED
from tests.docs.pages import PAGE_S_MAX, ROOT, blocks_of, run_page
from tests.fast_folders import FAST_PLACE

pytestmark = [pytest.mark.mount, pytest.mark.timeout(PAGE_S_MAX)]

GUIDE = ROOT / "docs" / "guide"


@pytest.fixture
def rsync() -> None:
    """Skip a test if rsync is missing, unless rsync is required."""
    if shutil.which("rsync") is None and "rsync" not in REQUIRED:
        pytest.skip("rsync is not installed (Debian package rsync)")


def test_commands_of_the_followers_guide_succeed(tmp_path: Path) -> None:
    printed = run_page(GUIDE / "followers.md", tmp_path)

    assert "Dear reader," in printed
    assert "following" in printed
    assert "draft" in printed


def test_commands_of_the_failover_guide_succeed(tmp_path: Path) -> None:
    printed = run_page(GUIDE / "failover.md", tmp_path)

    assert "refused with status 7" in printed
    assert "in epoch 2" in printed
    assert "in the bucket\nwritten after it\nand back\n" in printed


def test_commands_of_the_time_travel_guide_succeed(tmp_path: Path) -> None:
    """The time travel guide mounts an old txg, copies files, rolls back and undoes the rollback."""
    printed = run_page(GUIDE / "time-travel.md", tmp_path)

    assert re.search(r"^- .*thesis", printed, re.MULTILINE), printed
    assert printed.count("Chapter one") == 3
    assert "to undo it: s3fs-meta rollback --at txg=" in printed
    assert "\nthesis\n" in printed
    assert printed.endswith("shopping list\n")


def test_commands_of_the_retention_guide_succeed(tmp_path: Path) -> None:
    """The retention guide shows and changes the retention, and deletes history to free space."""
    printed = run_page(GUIDE / "retention.md", tmp_path)

    before_kib, after_kib = (
        int(found) for found in re.findall(r"^(\d+)\tstore$", printed, re.MULTILINE)
    )
    assert "30d\n12h\n" in printed
    assert printed.endswith(f"7d\n{after_kib}\tstore\n")
    assert before_kib - after_kib > 2000


def test_commands_of_the_restore_guide_succeed(tmp_path: Path) -> None:
    """The restore guide restores all files, and then only some files, on another host."""
    printed = run_page(GUIDE / "restore.md", tmp_path)

    assert printed.count("Dear reader,") == 1
    assert "copied 2 files" in printed
    assert "a picture" in printed
    assert "again\nfirst\n" in printed
    assert (tmp_path / "some/letters/first").samefile(tmp_path / "some/letters/again")


def test_commands_of_the_browse_guide_succeed(tmp_path: Path) -> None:
    """The browse guide finds a version of a report from before the report was overwritten."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed (Debian package curl)")
    printed = run_page(GUIDE / "browse.md", tmp_path)

    assert "Compare txg 2 as the old version" in printed
    assert "the figures of October\n" in printed
    assert "overwritten" not in printed


def test_commands_of_the_directory_trees_guide_succeed(tmp_path: Path) -> None:
    """The tree guide copies, locks and removes directory trees; its comments show the output."""
    page = GUIDE / "trees.md"
    promised = re.findall(r" # (.+)$", "\n".join(blocks_of(page)), re.MULTILINE)
    assert len(promised) == 4

    printed = run_page(page, tmp_path).splitlines()[1:]

    shown = [line for line in printed if not line.startswith("refused")]
    assert shown == ", ".join(promised).split(", ")
    assert printed.count("refused") == printed.count("refused again") == 1


def test_commands_of_the_offline_guide_succeed(tmp_path: Path) -> None:
    """The offline guide reads and changes pinned files while the bucket is unreachable."""
    printed = run_page(GUIDE / "offline.md", tmp_path)

    assert "downloaded, all 9 B cached and pinned\n" in printed
    assert f"9 B  all cached  {tmp_path}/home/work\n" in printed
    assert "home/work/notes/today:buy milk\n" in printed
    assert "nothing is pinned" in printed
    assert '"cached_bytes": 8' in printed
    assert (tmp_path / "copy/notes/today").read_text() == "buy milk\ncall Ann\n"


@pytest.mark.usefixtures("rsync")
def test_commands_of_the_moving_in_guide_succeed(tmp_path: Path) -> None:
    """The moving-in guide copies a tree with links and holes, and rsync finds no difference."""
    printed = run_page(GUIDE / "moving-in.md", tmp_path)

    assert re.search(r"transaction group \d+\n[^\n]*: clean\nDear reader,", printed)
    assert printed.endswith("Dear reader,\nletters/first\n2 links\n")


@pytest.mark.usefixtures("rsync")
def test_commands_of_the_backup_guide_succeed(tmp_path: Path) -> None:
    """The backup guide keeps a point in time for each day, and backs up a consistent copy."""
    printed = run_page(GUIDE / "backup.md", tmp_path)

    before, kept, after = printed.partition("kept first-night: ")
    assert "Yours" not in before
    assert kept
    assert "Dear reader,\nYours\ndropped first-night" in after
    assert after.endswith("row 1\nDear reader,\n2026-11-23\nlatest\nwork\n")
    assert "dropped 0 of 1 point" in before
    assert (tmp_path / "restored/letter").read_text() == "Dear reader,\n"


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that other users can reach, unlike ``tmp_path``."""
    for name in ("smbd", "smbclient", "ganesha.nfsd", "nfs-ls"):
        if shutil.which(name) is None and "exports" not in REQUIRED:
            pytest.skip(f"{name} is not installed (CI=true contrib/setup/test-packages)")
    with tempfile.TemporaryDirectory(dir=FAST_PLACE) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0 and "root" not in REQUIRED, reason="needs root privileges")
def test_commands_of_the_export_guide_succeed(public: Path) -> None:
    """In the export guide, Samba and NFS clients read each other's files, even after restarts."""
    printed = run_page(GUIDE / "exporting.md", public)

    assert printed.count("Dear reader,") == 3
    assert printed.count("  drafts  ") == printed.count("  second  ") == 2


@pytest.mark.skipif(os.geteuid() != 0 and "root" not in REQUIRED, reason="needs root privileges")
def test_commands_of_the_container_guide_succeed(tmp_path: Path) -> None:
    """In the container guide, a new mount appears only in containers with propagation "slave"."""
    printed = run_page(GUIDE / "containers.md", tmp_path)

    assert "Dear reader,\nstatus 17\nDear reader,\n" in printed
    assert re.search(r"^ state +detached", printed, re.MULTILINE)
    assert re.search(r"^ used by .*by sleep", printed, re.MULTILINE)


def test_commands_of_the_upgrade_guide_succeed(tmp_path: Path) -> None:
    """The upgrade guide mounts with existing local state, and with separate state for a trial."""
    printed = run_page(GUIDE / "upgrading.md", tmp_path)

    assert printed.count("Dear reader,") == 2
    assert ": clean" in printed
    assert re.search(r"^ lease +free;", printed, re.MULTILINE)
    assert (tmp_path / "trial").is_dir()
