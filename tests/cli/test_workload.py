"""Files written, read and removed, and what each took."""

import threading
from pathlib import Path

import pytest

from s3fs_meta.cli.workload import PREFIX, Sizes, Workload
from s3fs_meta.limits import KIB, MIB

SIZES = Sizes(big_bytes=2 * MIB, block_bytes=MIB, small_bytes=KIB, files=5, threads=3)


def _nothing(_what: str, _done: int, _total: int) -> None:
    pass


def test_every_phase_counts_what_all_threads_did(tmp_path: Path) -> None:
    """Each has its own files."""
    results = {one.what: one for one in Workload(tmp_path, SIZES, _nothing).run()}

    done = {what: (one.operations, one.size_bytes) for what, one in results.items()}
    assert done == {
        "write big files": (3 * (2 + 1), 6 * MIB),  # and the fsync
        "read big files": (3 * 2, 6 * MIB),
        "write small files": (15, 15 * KIB),
        "read small files": (15, 15 * KIB),
        "stat": (15, 0),
        "create empty files": (15, 0),
        "unlink": (15, 0),
    }
    for one in results.values():
        assert len(one.latencies_s) == one.operations
        assert list(one.latencies_s) == sorted(one.latencies_s)
        assert sum(one.latencies_s) <= one.seconds * SIZES.threads
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("big_bytes", "files"), [(0, 2), (MIB, 0)])
def test_what_is_not_wanted_is_left_out(tmp_path: Path, big_bytes: int, files: int) -> None:
    """Large files or small ones alone."""
    sizes = SIZES._replace(big_bytes=big_bytes, files=files)
    found = [one.what for one in Workload(tmp_path, sizes, _nothing).run()]

    assert any("big" in what for what in found) == bool(big_bytes)
    assert ("stat" in found) == bool(files)


def test_no_content_is_there_twice(tmp_path: Path) -> None:
    """Else a filesystem that deduplicates would do nothing."""
    seen: list[bytes] = []

    def look(what: str, done: int, total: int) -> None:
        if what == "create empty files" and done == total:
            seen.extend(path.read_bytes() for path in tmp_path.glob(f"{PREFIX}*/*/small-*"))
            for path in tmp_path.glob(f"{PREFIX}*/*/big"):
                data = path.read_bytes()
                seen.extend((data[:MIB], data[MIB:]))

    Workload(tmp_path, SIZES, look).run()

    assert len(set(seen)) == len(seen) == 15 + 6


def test_interrupt_stops_all_threads_and_leaves_nothing(tmp_path: Path) -> None:
    """The exception of an interrupt comes out of any wait."""
    before = threading.active_count()

    def interrupt(what: str, _done: int, _total: int) -> None:
        if what == "read small files":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Workload(tmp_path, SIZES, interrupt).run()

    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before


def test_failure_of_one_thread_ends_all(tmp_path: Path) -> None:
    """The error of the filesystem is raised; no files remain."""

    def spoil(what: str, done: int, total: int) -> None:
        if what == "write big files" and done == total:
            [folder] = tmp_path.iterdir()
            (folder / "1" / "small-3").mkdir()

    with pytest.raises(FileExistsError):
        Workload(tmp_path, SIZES, spoil).run()

    assert list(tmp_path.iterdir()) == []
