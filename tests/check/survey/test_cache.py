"""Tests of the survey of the cache directory by fsck."""

import errno
import os
from collections.abc import Iterator

import pytest

from s3fs_meta.check.context import Examination
from s3fs_meta.check.observations import Evidence, Need
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.survey import cache as cache_survey
from s3fs_meta.hashed_dir import NumberedDir
from tests.check.healthy import NOW_NS, Healthy


def _survey(healthy: Healthy) -> Examination:
    exam = Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=False)
    cache_survey.survey(exam, healthy.files, healthy.tmp)
    return exam


def test_survey_records_the_size_of_each_block_file(healthy: Healthy) -> None:
    """The name of a block file contains the number of its block."""
    exam = _survey(healthy)
    seen = {row[0]: row[1] for row in healthy.db.all("SELECT * FROM temp.seen_files")}
    assert seen[healthy.block_of(healthy.dirty, 1)] == 2001
    assert len(seen) == len(healthy.before["cached_blocks"])
    assert Need.FILES in exam.evidence.surveyed
    assert exam.files is healthy.files


async def test_link_to_a_block_file_counts_as_the_file(healthy: Healthy) -> None:
    """A mount follows the link, so the dirty block must not become a recorded hole."""
    block = healthy.block_of(healthy.dirty, 1)
    path = NumberedDir(healthy.files.root).path(f"{block:x}")
    path.symlink_to(path.rename(healthy.tmp / "moved"))

    assert len(healthy.files.read(block, 0, 2001)) == 2001
    assert (await healthy.check_all()).lines() == ["clean"]


def test_unexpected_files_in_the_cache_are_recorded_as_stray_files(healthy: Healthy) -> None:
    """Stray files are unfinished, not regular, have unexpected names or are in wrong directories.

    So are links without a regular file as their target.
    """
    root = healthy.files.root
    strays = [
        root / "README",
        root / "\udcff",
        root / "0a",
        root / f"{1 << 70:x}",
        healthy.tmp / "fetch-9-1",
    ]
    misplaced = root / "zz" / f"{healthy.block_of(healthy.dirty, 1):x}"
    misplaced.parent.mkdir()
    for path in (*strays, misplaced):
        path.write_bytes(b"x")
    fifo = root / "xxx" / "fff"
    os.mkfifo(fifo)
    strays.append(fifo)
    for name, target in (("ffc", "ffc"), ("ffd", "/dev/null"), ("ffe", "missing")):
        link = root / "xxx" / name
        link.symlink_to(target)
        strays.append(link)

    _survey(healthy)

    seen = {row[0] for row in healthy.db.all("SELECT path FROM temp.seen_strays")}
    assert seen == {os.fsencode(path) for path in (*strays, misplaced)}


def test_cached_block_counts_as_intact_if_it_matches_its_hash(healthy: Healthy) -> None:
    """A cached block with a changed byte or without its file is not intact."""
    blocks = healthy.write_uploaded(healthy.attributed, b"intact", b"torn!", b"gone")
    healthy.files.write_within(blocks[1], 0, b"T", 0)
    exam = _survey(healthy)
    healthy.files.remove(blocks[2])

    cache_survey.verify_copies(exam, healthy.keyring, "SELECT block FROM blocks WHERE pack > 2")

    intact = {row[0] for row in healthy.db.all("SELECT block FROM temp.seen_intact_copies")}
    assert intact & set(blocks) == {blocks[0]}


def test_survey_without_a_cache_directory_finds_no_intact_block(healthy: Healthy) -> None:
    exam = Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=False)
    cache_survey.verify_copies(exam, healthy.keyring, "SELECT block FROM blocks")
    assert healthy.db.all("SELECT * FROM temp.seen_intact_copies") == []


async def test_blocks_in_an_unreadable_cache_directory_are_not_reported_as_lost(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of the disk, such as e2fsck(8), may make the directory readable again."""
    block = healthy.block_of(healthy.dirty, 1)
    unreadable = NumberedDir(healthy.files.root).path(f"{block:x}").parent
    scan = os.scandir

    def fail(path: str) -> Iterator[os.DirEntry[str]]:
        if path == str(unreadable):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", fail)

    with pytest.raises(OSError, match="Input/output"):
        await healthy.check_all(Mode.ALL)

    assert healthy.dump() == healthy.before
