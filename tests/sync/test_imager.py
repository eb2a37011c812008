"""Images: what is flushed is there for every other host."""

import pytest

from s3fs_meta.errors import (
    FencedError,
)
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync.opening import OpenOptions

from .conftest import Power, read_file, write_file

CONTENT = b"hello" * 1000


async def test_flushed_file_is_readable_on_another_host(power: Power) -> None:
    """After flush and clean close a host without local state sees every byte."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        assert await session.flush() is not None
        await session.close()

    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_unchanged_filesystem_makes_no_image(power: Power) -> None:
    """A flush without changes writes nothing to the store."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        await session.flush()
        before = dict(power.store.objects)

        assert await session.flush() is None

        assert power.store.objects == before
        await session.close()
    async with power.session("a") as session:
        assert await session.flush() is None


async def test_taken_over_session_turns_read_only(power: Power) -> None:
    """The old writer's next image is refused; it says so and keeps everything."""
    async with power.session("a") as old:
        write_file(old, CONTENT)
        async with power.session("b", options=OpenOptions(force_takeover=True)):
            with pytest.raises(FencedError):
                await old.flush()

            assert old.status.state is MountState.FENCED
            assert not old.status.writable
