"""A session: background tasks and their failures."""

from s3fs_meta.mount_state import MountState

from .conftest import Power, read_file, write_file

CONTENT = b"hello" * 1000


async def test_failing_background_task_does_not_end_the_mount(power: Power) -> None:
    """It is logged, the mount turns read-only and still answers reads."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)

        async def broken() -> None:
            raise RuntimeError("a bug")

        await session.supervise("broken", broken)

        assert session.status.state is MountState.DEGRADED
        assert "broken" in session.status.why
        assert await read_file(session, ino) == CONTENT
