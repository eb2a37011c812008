"""The commands of the guides run and print what the pages promise."""

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
    """Skip a test if rsync is missing, unless it is required."""
    if shutil.which("rsync") is None and "rsync" not in REQUIRED:
        pytest.skip("rsync is not installed (Debian package rsync)")


def test_commands_of_the_page_on_followers_run(tmp_path: Path) -> None:
    printed = run_page(GUIDE / "followers.md", tmp_path)

    assert "Dear reader," in printed
    assert "following" in printed
    assert "draft" in printed


def test_commands_of_the_page_on_failover_run(tmp_path: Path) -> None:
    printed = run_page(GUIDE / "failover.md", tmp_path)

    assert "refused with status 7" in printed
    assert "in epoch 2" in printed
    assert "in the bucket\nwritten after it\nand back\n" in printed


def test_commands_of_the_page_on_time_travel_run(tmp_path: Path) -> None:
    """The page finds a txg, mounts it, copies from it, rolls back to it, and undoes that."""
    printed = run_page(GUIDE / "time-travel.md", tmp_path)

    assert re.search(r"^- .*thesis", printed, re.MULTILINE), printed
    assert printed.count("Chapter one") == 3
    assert "to undo it: s3fs-meta rollback --at txg=" in printed
    assert "\nthesis\n" in printed
    assert printed.endswith("shopping list\n")


def test_commands_of_the_page_on_retention_run(tmp_path: Path) -> None:
    """The page shows and changes the retention, and drops the history to free its space."""
    printed = run_page(GUIDE / "retention.md", tmp_path)

    before_kib, after_kib = (
        int(found) for found in re.findall(r"^(\d+)\tstore$", printed, re.MULTILINE)
    )
    assert "30d\n12h\n" in printed
    assert printed.endswith(f"7d\n{after_kib}\tstore\n")
    assert before_kib - after_kib > 2000


def test_commands_of_the_page_on_restores_run(tmp_path: Path) -> None:
    """The page restores everything, and some files, on another host."""
    printed = run_page(GUIDE / "restore.md", tmp_path)

    assert printed.count("Dear reader,") == 1
    assert "copied 2 files" in printed
    assert "a picture" in printed
    assert "again\nfirst\n" in printed
    assert (tmp_path / "some/letters/first").samefile(tmp_path / "some/letters/again")


def test_commands_of_the_page_on_browsing_run(tmp_path: Path) -> None:
    """The page finds the version of a report before it was overwritten."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed (Debian package curl)")
    printed = run_page(GUIDE / "browse.md", tmp_path)

    assert "Compare txg 2 as the old version" in printed
    assert "the figures of October\n" in printed
    assert "overwritten" not in printed


def test_commands_of_the_page_on_trees_run(tmp_path: Path) -> None:
    """The page copies, locks and removes trees; its commands print what its comments promise."""
    page = GUIDE / "trees.md"
    promised = re.findall(r" # (.+)$", "\n".join(blocks_of(page)), re.MULTILINE)
    assert len(promised) == 4

    printed = run_page(page, tmp_path).splitlines()[1:]

    shown = [line for line in printed if not line.startswith("refused")]
    assert shown == ", ".join(promised).split(", ")
    assert printed.count("refused") == printed.count("refused again") == 1


def test_commands_of_the_page_on_working_offline_run(tmp_path: Path) -> None:
    """Pinned files are read and changed while the bucket is away."""
    printed = run_page(GUIDE / "offline.md", tmp_path)

    assert "downloaded, all 9 B cached and pinned\n" in printed
    assert f"9 B  all cached  {tmp_path}/home/work\n" in printed
    assert "home/work/notes/today:buy milk\n" in printed
    assert "nothing is pinned" in printed
    assert '"cached_bytes": 8' in printed
    assert (tmp_path / "copy/notes/today").read_text() == "buy milk\ncall Ann\n"


@pytest.mark.usefixtures("rsync")
def test_commands_of_the_page_on_moving_in_run(tmp_path: Path) -> None:
    """The page copies a tree with links and holes; rsync and fsck then find no difference."""
    printed = run_page(GUIDE / "moving-in.md", tmp_path)

    assert re.search(r"transaction group \d+\n[^\n]*: clean\nDear reader,", printed)
    assert printed.endswith("Dear reader,\nletters/first\n2 links\n")


@pytest.mark.usefixtures("rsync")
def test_commands_of_the_page_on_backups_run(tmp_path: Path) -> None:
    """Each day keeps its content, a frozen copy is backed up, and a locked day is removed."""
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
    """Return a directory that other users can reach, which ``tmp_path`` is not."""
    for name in ("smbd", "smbclient", "ganesha.nfsd", "nfs-ls"):
        if shutil.which(name) is None and "exports" not in REQUIRED:
            pytest.skip(f"{name} is not installed (CI=true contrib/setup/test-packages)")
    with tempfile.TemporaryDirectory(dir=FAST_PLACE) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0 and "root" not in REQUIRED, reason="needs root")
def test_commands_of_the_page_on_exports_run(public: Path) -> None:
    """Clients of Samba and NFS read what the others wrote, also after restarts of all daemons."""
    printed = run_page(GUIDE / "exporting.md", public)

    assert printed.count("Dear reader,") == 3
    assert printed.count("  drafts  ") == printed.count("  second  ") == 2


@pytest.mark.skipif(os.geteuid() != 0 and "root" not in REQUIRED, reason="needs root")
def test_commands_of_the_page_on_containers_run(tmp_path: Path) -> None:
    """A slave namespace gets the new mount; a private one keeps the old mount in use."""
    printed = run_page(GUIDE / "containers.md", tmp_path)

    assert "Dear reader,\nstatus 17\nDear reader,\n" in printed
    assert re.search(r"^ state +detached", printed, re.MULTILINE)
    assert re.search(r"^ used by .*by sleep", printed, re.MULTILINE)


def test_commands_of_the_page_on_upgrading_run(tmp_path: Path) -> None:
    """The page mounts again with the same state, and with a separate one for a trial."""
    printed = run_page(GUIDE / "upgrading.md", tmp_path)

    assert printed.count("Dear reader,") == 2
    assert ": clean" in printed
    assert re.search(r"^ lease +free;", printed, re.MULTILINE)
    assert (tmp_path / "trial").is_dir()
