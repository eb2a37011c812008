"""A real disk whose writes fail for some time.

The state directory is on an ext4 whose image is a sparse file on a small tmpfs. While the tmpfs is
full, the loop device fails to write blocks that are not yet in the image.
"""

import contextlib
import gc
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.cache.files import open_blocks
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.errors import LostBlockError
from s3fs_meta.limits import (
    FILES_AHEAD,
    INTENT_CONTENT_BYTES_MAX,
    INTENT_LOG_BYTES,
    SYNCFS_FILES_MIN,
    WAL_ROOM_BYTES,
)
from s3fs_meta.model import BlockId
from tests.cli.conftest import Place
from tests.conftest import REQUIRED
from tests.page_cache import locked_page_cache
from tests.polling import PROCESS_S_MAX, wait_until
from tests.power.loop_disk import why_no_loop_disk
from tests.power.next_boot import VARIABLE
from tests.programs import Program

pytestmark = pytest.mark.mount

THIN_BYTES: Final = 64 << 20
IMAGE_BYTES: Final = 300 << 20
BLOCK: Final = os.urandom(64 << 10)
LARGE: Final = BLOCK * (
    INTENT_CONTENT_BYTES_MAX // len(BLOCK) + 1
)  # Content that does not fit into the intent log.
OPTIONS: Final = "commit=600,sync_interval=600"  # Long intervals prevent uploads during a test.


class ThinDisk:
    """An ext4 without a journal, whose blocks use space on a tmpfs only after they are written."""

    def __init__(self, home: Path) -> None:
        self.thin, self.mountpoint = home / "thin", home / "disk"
        self.thin.mkdir()
        self.mountpoint.mkdir()
        size = f"size={THIN_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", self.thin], check=True)
        self._image = self.thin / "image"
        with self._image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        # With metadata checksums, ext4 would refuse intact files after a failed write.
        features = "^has_journal,^metadata_csum"
        make = ["mkfs.ext4", "-q", "-F", "-O", features, "-E", "lazy_itable_init=0"]
        subprocess.run([*make, self._image], check=True)

    def mount(self) -> None:
        """Mount the disk."""
        subprocess.run(["mount", "-o", "loop", self._image, self.mountpoint], check=True)

    def repair(self) -> None:
        """Remove files whose inodes the disk has lost, as e2fsck does at boot."""
        subprocess.run(["e2fsck", "-fy", self._image], check=False, capture_output=True)

    def unmount(self) -> None:
        """Unmount the disk, which empties the page cache of its files."""
        subprocess.run(["umount", self.mountpoint], check=True)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Make writes to new disk blocks fail while the context is active."""
        filler = self.thin / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filler.unlink()

    def close(self) -> None:
        """Unmount all filesystems, even if a daemon is still running."""
        if self.mountpoint.is_mount():
            subprocess.run(["umount", "-l", self.mountpoint], check=True)
        subprocess.run(["umount", "-l", self.thin], check=True)


@pytest.fixture
def thin_disk(tmp_path: Path) -> Iterator[ThinDisk]:
    """Return a disk on which a test can make writes fail."""
    why = why_no_loop_disk()
    if why and "loop" not in REQUIRED:
        pytest.skip(why)
    with locked_page_cache(is_exclusive=True):
        disk = ThinDisk(tmp_path)
        try:
            yield disk
        finally:
            disk.close()


class Host:
    """A mount whose state directory is on a failing disk."""

    def __init__(self, place: Place, disk: ThinDisk, home: Path) -> None:
        self._place, self._disk = place, disk
        self._boot_id = home / "boot_id"
        self._boots = 0
        self._program = Program(disk.mountpoint / "state")
        self._program.environment[VARIABLE] = str(self._boot_id)

    def boot(self) -> None:
        """Mount the disk as after a reboot."""
        self._boots += 1
        self._boot_id.write_text(f"boot {self._boots}\n")
        self._disk.mount()

    def make(self) -> None:
        """Create the filesystem on the host's store."""
        self._program.ok("mkfs", "--plain", "--block-size", "64K", self._place.url)

    def mount(self) -> None:
        """Mount the filesystem."""
        words = ("mount", "-o", OPTIONS, self._place.url, self._place.mountpoint)
        done = self._program.run(*words, module="tests.power.next_boot")
        assert done.returncode == 0, done.stderr

    def unmount(self) -> None:
        """Unmount the filesystem; a degraded mount uploads nothing."""
        self._program.run("umount", self._place.mountpoint)

    def wait_for_room(self) -> None:
        """Wait until the WAL and the intent log have free space after an fsync.

        Also wait for the empty block files that the daemon creates in advance, and sync them:
        otherwise the daemon could sync their directory while writes to the disk fail.
        """
        wanted = {"meta.db-wal": WAL_ROOM_BYTES, "blocks/intent-log": INTENT_LOG_BYTES}
        state = self._disk.mountpoint / "state"
        wait_until(
            lambda: all(
                any(log.stat().st_size >= size_bytes for log in state.glob(f"*/{name}"))
                for name, size_bytes in wanted.items()
            ),
            "a log still has no free space",
        )
        wait_until(
            lambda: len(list(state.glob("*/blocks/*/*"))) > FILES_AHEAD // 2,
            "no block files were created in advance",
        )
        subprocess.run(["sync", "-f", self._disk.mountpoint], check=True)

    def lose_power(self) -> None:
        """Kill the daemon, and unmount the disk so that its cached pages are dropped."""
        pid_fd = os.pidfd_open(self._program.status(self._place.mountpoint)["pid"])
        signal.pidfd_send_signal(pid_fd, signal.SIGKILL)
        assert select.select([pid_fd], [], [], PROCESS_S_MAX)[0], "the daemon did not exit"
        os.close(pid_fd)
        subprocess.run(["fusermount3", "-u", "-z", self._place.mountpoint], check=True)
        self._disk.unmount()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _mounted_with_a_synced_file(host: Host, mountpoint: Path) -> tuple[Path, Path]:
    """Mount a new filesystem with a synced file; return its path and a path for another file."""
    host.boot()
    host.make()
    host.mount()
    earlier = mountpoint / "earlier"
    earlier.write_bytes(BLOCK[::-1])
    _fsync(earlier)
    host.wait_for_room()
    return earlier, mountpoint / "file"


def test_lost_pages_are_reported_even_if_another_program_received_the_error_first(
    thin_disk: ThinDisk,
) -> None:
    """The kernel reports a write error to the program that syncs first, but the pages stay lost."""
    thin_disk.mount()
    files = BlockFiles(thin_disk.mountpoint / "blocks", thin_disk.mountpoint / "tmp")
    blocks = [BlockId(number) for number in range(1, SYNCFS_FILES_MIN + 1)]
    for block in blocks:
        files.create(block, 0, b"old")
    files.sync(blocks)
    with thin_disk.full():
        for block in blocks:
            files.write_within(block, 0, BLOCK, 3)
        for _ in range(2):  # The second syncfs(2) of the disk reports success.
            subprocess.run(["sync", "-f", thin_disk.mountpoint], check=False, capture_output=True)

    with pytest.raises(OSError, match=r"Input/output error|No space left"):
        files.sync(blocks)
    del files
    gc.collect()


def test_fsync_after_a_remount_is_durable_despite_an_earlier_failed_fsync(
    empty: Place, thin_disk: ThinDisk, tmp_path: Path
) -> None:
    """The kernel treats lost pages as written, so the next mount must write them again."""
    host = Host(empty, thin_disk, tmp_path)
    earlier, path = _mounted_with_a_synced_file(host, empty.mountpoint)
    with thin_disk.full():
        path.write_bytes(LARGE)
        with pytest.raises(OSError, match="Input/output error"):
            _fsync(path)
    with pytest.raises(OSError, match="Input/output error"):
        _fsync(path)
    host.unmount()

    host.mount()
    _fsync(path)
    host.lose_power()
    host.boot()
    host.mount()

    assert path.read_bytes() == LARGE
    assert earlier.read_bytes() == BLOCK[::-1]
    host.unmount()


def test_logged_content_survives_although_its_block_file_cannot_be_written(
    empty: Place, thin_disk: ThinDisk, tmp_path: Path
) -> None:
    """The intent log has allocated space, and the next mount writes the block file from the log."""
    host = Host(empty, thin_disk, tmp_path)
    earlier, path = _mounted_with_a_synced_file(host, empty.mountpoint)
    with thin_disk.full():
        path.write_bytes(BLOCK)
        _fsync(path)
        host.lose_power()

    thin_disk.repair()
    host.boot()
    host.mount()
    assert path.read_bytes() == BLOCK
    assert earlier.read_bytes() == BLOCK[::-1]
    host.unmount()


def test_dropped_pages_after_a_failed_sync_do_not_read_as_zeros(
    empty: Place, thin_disk: ThinDisk, tmp_path: Path
) -> None:
    """After a failed write, the kernel treats pages as clean, so it drops them to free memory."""
    host = Host(empty, thin_disk, tmp_path)
    earlier, path = _mounted_with_a_synced_file(host, empty.mountpoint)
    with thin_disk.full():
        path.write_bytes(LARGE)
        with pytest.raises(OSError, match="Input/output error"):
            _fsync(path)
        _drop_pages(thin_disk.mountpoint / "state")
    host.unmount()

    host.mount()
    assert earlier.read_bytes() == BLOCK[::-1]
    with pytest.raises(OSError, match="Input/output error"):
        path.read_bytes()
    host.unmount()


def test_pages_lost_during_a_mount_do_not_read_as_zeros_in_the_mount(thin_disk: ThinDisk) -> None:
    thin_disk.mount()
    files = BlockFiles(thin_disk.mountpoint / "blocks", thin_disk.mountpoint / "tmp")
    first, second = BlockId(1), BlockId(2)
    files.create(first, 0, BLOCK)
    files.sync([first])
    files.create(second, 0, b"")
    files.sync([second])
    with thin_disk.full():
        files.write_within(second, 0, BLOCK * 16, 0)
        with pytest.raises(OSError, match=r"Input/output error|No space left"):
            files.sync([second])
        assert files.read_on_loop(second, 0, 16 * len(BLOCK)) == BLOCK * 16, (
            "the memory still has them"
        )
        _drop_pages(thin_disk.mountpoint)

    for read in (files.read, files.read_on_loop):
        with pytest.raises(
            LostBlockError, match="the disk has lost the content of the cache file from byte 0 on"
        ):
            read(second, 0, 16 * len(BLOCK))
        assert read(first, 0, len(BLOCK)) == BLOCK
    del files, read
    gc.collect()


def test_lost_pages_of_a_file_whose_inode_was_evicted_are_reported(
    thin_disk: ThinDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the inode is evicted, the kernel reports the error for the disk, not for the file."""
    monkeypatch.setattr(open_blocks, "OPEN_BLOCKS_MAX", 1)
    thin_disk.mount()
    files = BlockFiles(thin_disk.mountpoint / "blocks", thin_disk.mountpoint / "tmp")
    first, second = BlockId(1), BlockId(2)
    files.create(first, 0, b"old")
    files.sync([first])
    with thin_disk.full():
        files.write_within(first, 0, BLOCK, 3)
        files.create(second, 0, b"")  # The call of create() closes the first file.
        subprocess.run(["sync", "-f", thin_disk.mountpoint], check=False, capture_output=True)
        _forget_inodes(thin_disk.mountpoint)

    with pytest.raises(OSError, match=r"Input/output error|No space left"):
        files.sync([first])
    del files
    gc.collect()


def _drop_pages(root: Path) -> None:
    """Make the kernel drop cached pages of block files, as it does when memory is short."""
    for path in root.glob("**/xxx/*"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _forget_inodes(root: Path) -> None:
    """Make the kernel drop the pages and the inodes of block files that no process has open."""
    _drop_pages(root)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("2\n")  # Drop inodes and dentries.
    except OSError as exc:
        pytest.skip(f"cannot make the kernel drop inodes: {exc}")


def test_lost_pages_do_not_read_as_zeros_after_the_disk_is_attached_again(
    empty: Place, thin_disk: ThinDisk, tmp_path: Path
) -> None:
    """After the disk was detached, unwritten pages are lost as after a power cut."""
    if not Path("/sys/block/loop0/diskseq").exists():
        pytest.skip("disk sequence numbers need Linux 5.15")
    host = Host(empty, thin_disk, tmp_path)
    host.boot()
    host.make()
    host.mount()
    earlier, path = empty.mountpoint / "earlier", empty.mountpoint / "file"
    earlier.write_bytes(BLOCK[::-1])
    _fsync(earlier)
    host.wait_for_room()  # Later rows then need no new disk block, whose write would fail.
    # This sync makes the new inodes durable.
    subprocess.run(["sync", "-f", thin_disk.mountpoint], check=True)
    with thin_disk.full():
        path.write_bytes(BLOCK)
        host.lose_power()
    thin_disk.mount()
    host.mount()

    assert earlier.read_bytes() == BLOCK[::-1]
    with pytest.raises(OSError, match="Input/output error"):
        path.read_bytes()
    host.unmount()
