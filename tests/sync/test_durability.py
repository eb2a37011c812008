"""Commits and syncs."""

import errno

import pytest
import trio

from s3fs_meta.meta import cached
from s3fs_meta.model import BlockId, BlockState
from s3fs_meta.mount_state import MountState

from .conftest import Power, remove_file, write_file

CONTENT = b"hello" * 1000


async def test_doomed_file_stays_until_its_change_is_synced(power: Power) -> None:
    """A removed file's block goes only after the removal can survive a power cut."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        [block] = cached.in_state(session.db, BlockState.DIRTY)
        remove_file(session, ino)

        assert session.files.size(block) == len(CONTENT)
        await session.durability.sync_all()
        assert session.files.size(block) is None
        assert cached.get(session.db, block) is None


async def test_group_commits_soon_after_its_first_operation(power: Power) -> None:
    """Without fsync an operation is committed by the timer of its group."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        with trio.fail_after(5):
            while session.db.in_group:  # noqa: ASYNC110 - the group has no event to wait for
                await trio.sleep(0.001)


async def test_fsync_syncs_the_content_before_the_rows(power: Power) -> None:
    """Data before names: the block's file is synced while its row is not yet committed."""
    order: list[str] = []
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        sync, commit = session.files.sync, session.db.commit_durable
        session.files.sync = lambda blocks: (order.append("files"), sync(blocks))[1]  # type: ignore[method-assign,func-returns-value]
        session.db.commit_durable = lambda: (order.append("rows"), commit())[1]  # type: ignore[method-assign,func-returns-value]

        await session.durability.sync_file(ino)

    assert order == ["files", "rows"]


async def test_disk_that_refuses_to_sync_turns_the_mount_read_only(power: Power) -> None:
    """After a failed fsync nobody knows what is durable, so nothing more is taken."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)

        def refuse(blocks: list[BlockId]) -> None:
            raise OSError(errno.EIO, "Input/output error", str(blocks))

        session.files.sync = refuse  # type: ignore[method-assign]

        with pytest.raises(OSError, match="Input/output"):
            await session.durability.sync_file(ino)

        assert session.status.state is MountState.DEGRADED
        assert "refused to sync" in session.status.why
