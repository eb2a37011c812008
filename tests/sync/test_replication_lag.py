"""Replication lag: the data that a loss of this machine would lose."""

import pytest
import trio

from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import Ino
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.replication_lag import FileState, ReplicationLag
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import Power, failing_append, read_file, write_file


def named_file(session: Session, name: bytes) -> Ino:
    """Create a file with a name in the root directory."""
    ino = write_file(session, b"content of " + name)
    dentries.add(session.db, Ino(1), name, ino)
    return ino


async def test_state_of_a_file_is_dirty_until_a_sync_and_local_until_a_flush(power: Power) -> None:
    """A file is DIRTY after a change, LOCAL after a sync and BUCKET after a flush."""
    async with power.session("a", tasks=False) as session:
        ino = named_file(session, b"file")
        other = named_file(session, b"other")
        state_of = session.unshipped.state_of
        assert await state_of(ino) is FileState.DIRTY
        await session.durability.sync()
        assert await state_of(ino) is FileState.LOCAL
        await session.flush()
        assert await state_of(ino) is FileState.BUCKET
        session.db.begin()
        inodes.touch(session.db, ino, mtime_ns=7)
        assert await state_of(ino) is FileState.DIRTY
        assert await state_of(other) is FileState.BUCKET


async def test_file_in_an_unconfirmed_changelog_does_not_count_as_uploaded(power: Power) -> None:
    """While the result of an upload is unknown, its files do not count as uploaded."""
    faulty = FaultyStore(power.store)
    async with power.session(
        "a", tasks=False, store=faulty, hook=failing_append(faulty)
    ) as session:
        ino = named_file(session, b"file")
        with pytest.raises(StoreUnavailableError):
            await session.flush()
        assert await session.unshipped.state_of(ino) is FileState.LOCAL
        assert (await session.unshipped.paths(10)).paths == ["/file"]


async def test_paths_of_unshipped_changes_are_listed(power: Power) -> None:
    """A changed file and both names of a renamed file are listed, but not their directory."""
    async with power.session("a", tasks=False) as session:
        kept, gone = named_file(session, b"kept"), named_file(session, b"gone")
        await session.flush()
        assert await session.unshipped.paths(10) == ([], True)
        session.db.begin()
        inodes.touch(session.db, kept, mtime_ns=7)
        dentries.remove(session.db, Ino(1), b"gone")
        dentries.add(session.db, Ino(1), b"renamed", gone)
        inodes.change_directory(session.db, Ino(1), 9)
        found = await session.unshipped.paths(10)
        assert found == (["/gone", "/kept", "/renamed"], True)
        assert (await session.unshipped.paths(2)).complete is False


async def test_all_files_are_reported_as_changed_after_too_many_changes(power: Power) -> None:
    """After too many changes, even unchanged files are reported as changed until the next flush."""
    async with power.session("a", tasks=False) as session:
        unshipped = ReplicationLag(
            session.db,
            lambda: session.shipper.confirmed_seq,
            lambda: session.durability.synced_mark,
            inodes_max=3,
        )
        files = [named_file(session, b"%d" % number) for number in range(9)]
        unchanged = Ino(999)
        assert {await unshipped.state_of(ino) for ino in (*files, unchanged)} == {FileState.DIRTY}
        await session.flush()
        assert {await unshipped.state_of(ino) for ino in (*files, unchanged)} == {FileState.BUCKET}


async def test_remote_fsync_returns_after_the_upload_to_the_bucket(power: Power) -> None:
    """After a remote fsync, the loss of the machine loses no synced data."""
    options = SessionOptions(fsync="remote", sync_interval_s=3600)
    async with power.session("a", session_options=options) as session:
        ino = write_file(session, b"precious")
        with trio.fail_after(WAIT_S_MAX):
            await session.sync_file(ino)
            await session.sync_file(ino)  # Without changes, fsync returns immediately.
    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        assert await read_file(session, ino) == b"precious"


async def test_remote_fsync_fails_during_an_outage(power: Power) -> None:
    faulty = FaultyStore(power.store)
    options = SessionOptions(fsync="remote", sync_interval_s=3600, write_timeout_s=0.2)
    async with power.session("a", session_options=options, store=faulty) as session:
        ino = write_file(session, b"precious")
        faulty.hold("create")
        with pytest.raises(StoreUnavailableError):
            await session.sync_file(ino)
        assert session.status.writable
