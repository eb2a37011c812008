"""Which copy counts at mount: local state or the bucket."""

import pytest

from s3fs_meta.errors import (
    HeldError,
    PassphraseError,
)
from s3fs_meta.sync.opening import OpenOptions

from .conftest import Power, read_file, write_file

CONTENT = b"hello" * 1000


async def test_second_host_is_refused_until_release(power: Power) -> None:
    """A crashed holder keeps the lease; the same host gets it back at once."""
    async with power.session("a"):
        pass

    with pytest.raises(HeldError):
        async with power.session("b"):
            pass
    async with power.session("a") as session:
        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert session.status.writable


async def test_killed_session_loses_nothing_committed(power: Power) -> None:
    """A block that was never uploaded is dirty again after a kill, and readable."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()

    async with power.session("a") as session:
        assert session.opened.crashed
        assert await read_file(session, ino) == CONTENT
        assert await session.flush() is not None
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_both_moved_keeps_local_changes_aside(power: Power) -> None:
    """After a takeover the old host restores the bucket and keeps what it had, and says where."""
    async with power.session("a") as session:
        write_file(session, b"only on a")
        session.durability.commit()
    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        ino = write_file(session, b"from b")
        await session.flush()
        await session.close()

    async with power.session("a") as session:
        assert await read_file(session, ino) == b"from b"
        [notice] = session.opened.notices
        assert "kept in" in notice
    [kept] = (power.home / "a").glob("kept-*")
    assert (kept / "meta.db").exists()
    assert list((kept / "blocks").rglob("*"))


async def test_wrong_passphrase_is_refused(power: Power) -> None:
    """An encrypted filesystem opens only with its passphrase; nothing is changed."""
    if not power.encrypted:
        pytest.skip("a plain filesystem asks for none")
    before = dict(power.store.objects)
    power.passphrase = b"wrong"

    with pytest.raises(PassphraseError):
        async with power.session("a"):
            pass

    assert power.store.objects == before
