"""Power cuts directly after recovery: recovered content must already be on the disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from s3fs_meta.cache.crash_safety.recovery import restore_content
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.limits import KIB
from s3fs_meta.meta.tables import block_map, local_state
from s3fs_meta.model import BlockId, BlockIndex
from s3fs_meta.testing.power_cut import Exactly, PowerCut
from s3fs_meta.testing.recorded_disk import DiskRecorder, recording
from tests.cache.conftest import INO, CacheBench

CONTENT = b"fsynced"


class RecordedBench(CacheBench):
    """A block cache on a disk whose changes are recorded."""

    def __init__(self, home: Path, recorder: DiskRecorder) -> None:
        self.recorder = recorder
        super().__init__(home)

    async def recover(self, *, power_lost: bool) -> None:
        """Restore the content of block files as a mount does."""
        self.db.commit()
        await restore_content(self.db, self.files, self.keyring, self.store, power_lost=power_lost)

    def synced(self, block: BlockId, after: Path) -> bytes:
        """Return the content of a block file after a power cut at this point."""
        after.mkdir()
        PowerCut(self.recorder.events).choose(Exactly(0)).write_to(after)
        files = BlockFiles(after / "blocks", after / "tmp")
        size_bytes = files.size(block)
        return b"" if size_bytes is None else files.read(block, 0, size_bytes)


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncIterator[RecordedBench]:
    """Yield an empty cache whose disk is recorded."""
    home = tmp_path / "home"
    home.mkdir()
    recorder = DiskRecorder(home)
    with recording(recorder):
        made = RecordedBench(home, recorder)
        yield made
    made.db.close()


@pytest.mark.parametrize("power_lost", [True, False], ids=["power cut", "kill"])
async def test_logged_content_is_in_its_synced_file_after_recovery(
    recorded: RecordedBench, tmp_path: Path, *, power_lost: bool
) -> None:
    """Recovered content must be in the synced block file, because the log is not used again."""
    recorded.db.begin_local()
    local_state.put(recorded.db, "epoch", "3")
    await recorded.prepare_log(32 * KIB)
    block = recorded.write(0, CONTENT)
    assert await recorded.log_writes()
    assert recorded.synced(block, tmp_path / "before") == b""
    if power_lost:
        recorded.files.remove(block)

    await recorded.recover(power_lost=power_lost)

    assert recorded.synced(block, tmp_path / "after") == CONTENT


async def test_content_of_a_copied_block_is_in_its_synced_file_after_recovery(
    recorded: RecordedBench, tmp_path: Path
) -> None:
    """Recovery removes the record of the original block, so the copy itself must be synced."""
    await recorded.upload_content(CONTENT)
    recorded.db.begin()
    located = recorded.located(0)
    block = recorded.cache.copy_on_write(located, INO, BlockIndex(0), len(CONTENT), len(CONTENT))
    block_map.set(recorded.db, INO, BlockIndex(0), block)
    recorded.cache.release(located.block)
    assert recorded.synced(block, tmp_path / "before") == b""
    recorded.files.cut_after(block, 0)

    await recorded.recover(power_lost=True)

    assert recorded.synced(block, tmp_path / "after") == CONTENT
