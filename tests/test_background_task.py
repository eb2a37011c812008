"""A task that runs concurrently with a with-block."""

import pytest
import trio
import trio.testing

from s3fs_meta.background_task import background_task


async def test_background_task_is_cancelled_when_the_with_block_ends() -> None:
    ended = False

    async def run() -> None:
        nonlocal ended
        try:
            await trio.sleep_forever()
        finally:
            ended = True

    async with background_task(run):
        await trio.testing.wait_all_tasks_blocked()
        assert not ended
    assert ended


async def test_exception_in_the_with_block_is_raised_unchanged() -> None:
    error = ValueError("the block failed")
    with pytest.raises(ValueError, match="the block failed") as caught:
        async with background_task(trio.sleep_forever):
            raise error
    assert caught.value is error


async def test_with_block_is_cancelled_together_with_its_scope() -> None:
    """A background task may cancel a scope around its with-block."""
    with trio.CancelScope() as scope:

        async def run() -> None:
            scope.cancel()

        async with background_task(run):
            await trio.sleep_forever()
    assert scope.cancelled_caught
