"""The restore process: it gives the same result and errors, and inherits no files or secrets."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.image import ManifestRef, parse_piece_key
from s3fs_meta.errors import NoSpaceLeftError, S3fsError, StoreUnavailableError
from s3fs_meta.limits import LIST_PAGE_KEYS
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import Fetched, ObjectStore
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.image.process_messages import Connection, error_of, fields_of_error
from s3fs_meta.sync.image.process_script import NICE
from s3fs_meta.sync.image.process_worker import DaemonStore
from s3fs_meta.sync.image.restore import Reserve, Restorer
from s3fs_meta.sync.image.restore_process import ProcessRestorer
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import WAIT_S_MAX
from tests.programs import open_files
from tests.sync.conftest import Power, write_file
from tests.tasks import running

pytestmark = pytest.mark.thorough


class HeldStore(FaultyStore):
    """A store in which reads of image pieces never return."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked = trio.Event()

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        if parse_piece_key(key) is not None:
            self.asked.set()
            await trio.sleep_forever()
        return await super().get(key, max_bytes)


class BrokenStore(FaultyStore):
    """A store in which reads of image pieces fail."""

    @override
    async def get(self, key: ObjectKey, max_bytes: int) -> Fetched:
        if parse_piece_key(key) is not None:
            raise StoreUnavailableError(key, 3, 1.5, "no route to host")
        return await super().get(key, max_bytes)


async def ship_some(session: Session, txgs: int = 7) -> None:
    """Ship some txgs after an image."""
    await session.make_image()
    for _ in range(txgs):
        write_file(session, b"x")
        await session.shipper.ship(anyway=True)
    await session.leveler.make_due()


def restorer_of(
    session: Session, store: ObjectStore | None = None, reserve: Reserve | None = None
) -> ProcessRestorer:
    """Return the restorer of a session's filesystem."""
    volume = session.volume
    return ProcessRestorer(store or volume.store, volume.keyring, volume.uuid, reserve=reserve)


def newest_of(session: Session) -> ManifestRef | None:
    """Return the image that the lease refers to."""
    head = session.volume.keeper.lease.head
    return None if head is None else head.manifest


def rows(path: Path) -> list[object]:
    """Return the rows of a restored database."""
    db = Database.open(path, Pragmas(journal_mode="off", synchronous="off"))
    try:
        tables = ("inodes", "dentries", "block_map", "blocks", "packs")
        return [db.all(f"SELECT * FROM {table} ORDER BY 1, 2", ()) for table in tables]
    finally:
        db.close()


async def restored_here(session: Session, target: Path, upto: Txg) -> Link:
    """Restore a database in the process of the test."""
    volume = session.volume
    restorer = Restorer(volume.store, volume.keyring, volume.uuid, no_progress)
    return await restorer.restore(newest_of(session), target, upto)


async def test_restore_process_builds_the_same_database_as_the_daemon(power: Power) -> None:
    async with power.session(tasks=False) as session:
        await ship_some(session)
        upto = Txg(session.link.txg - 1)
        reserved: list[int] = []

        async def reserve(size_bytes: int) -> None:
            reserved.append(size_bytes)
            await trio.lowlevel.checkpoint()

        link = await restorer_of(session, reserve=reserve).restore(
            newest_of(session), power.home / "apart.db", upto
        )
        expected = await restored_here(session, power.home / "here.db", upto)

    assert link == expected
    assert link.txg == upto
    assert rows(power.home / "apart.db") == rows(power.home / "here.db")
    assert reserved
    assert reserved[0] > 0


async def test_restore_process_reports_the_same_errors_as_the_daemon(
    plain: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the restore process has the message, the errno and the log of the daemon."""
    async with plain.session(tasks=False) as session:
        await ship_some(session, 3)
        for key in [key for key in plain.store.objects if key.startswith("level/")]:
            del plain.store.objects[key]
        del plain.store.objects[key_of(Txg(session.link.txg - 1))]

        with pytest.raises(BrokenChainError) as apart:
            await restorer_of(session).restore(
                newest_of(session), plain.home / "apart.db", session.link.txg
            )
        logged = [(one.name, one.levelno, one.getMessage()) for one in caplog.records]
        caplog.clear()
        with pytest.raises(BrokenChainError) as here:
            await restored_here(session, plain.home / "here.db", session.link.txg)

    assert vars(apart.value) == vars(here.value)
    assert str(apart.value) == str(here.value)
    assert logged
    assert logged == [(one.name, one.levelno, one.getMessage()) for one in caplog.records]
    assert not list(plain.home.glob("apart.db*"))


async def test_restore_process_fails_if_the_store_fails(plain: Power) -> None:
    async with plain.session(tasks=False) as session:
        await ship_some(session)
        with pytest.raises(StoreUnavailableError, match="no route to host") as failed:
            await restorer_of(session, BrokenStore(plain.store)).restore(
                newest_of(session), plain.home / "apart.db", session.link.txg
            )
    assert failed.value.attempts == 3
    assert failed.value.waited_s == 1.5


async def test_restore_process_fails_if_no_disk_space_can_be_reserved(plain: Power) -> None:
    async def refuse(size_bytes: int) -> None:
        await trio.lowlevel.checkpoint()
        raise NoSpaceLeftError(f"{size_bytes} bytes")

    async with plain.session(tasks=False) as session:
        await ship_some(session)
        with pytest.raises(NoSpaceLeftError, match=r"no space left: [1-9][0-9]* bytes"):
            await restorer_of(session, reserve=refuse).restore(
                newest_of(session), plain.home / "apart.db", session.link.txg
            )
    assert not list(plain.home.glob("apart.db*"))


def children() -> set[int]:
    """Return the PIDs of all children of this process."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@asynccontextmanager
async def begun(session: Session, target: Path) -> AsyncIterator[tuple[int, "Outcome"]]:
    """Start a restore that waits for an image piece; yield its PID and its later outcome."""
    volume, before, outcome = session.volume, children(), Outcome()
    store = HeldStore(volume.store)
    restorer = ProcessRestorer(store, volume.keyring, volume.uuid)

    async def restore() -> None:
        try:
            await restorer.restore(newest_of(session), target, session.link.txg)
        except (S3fsError, OSError) as exc:
            outcome.failed(exc)

    async with running(restore):
        await store.asked.wait()
        [pid] = children() - before
        yield pid, outcome


class Outcome:
    """The failure of a restore, recorded for the test."""

    def __init__(self) -> None:
        self.message = ""
        self.has_failed = trio.Event()

    def failed(self, exc: Exception) -> None:
        """Record the failure of the restore."""
        self.message = str(exc)
        self.has_failed.set()


async def test_restore_process_inherits_no_file_and_no_secret(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "in the environment")
    with (power.home / "inheritable").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        async with power.session(tasks=False) as session:
            await ship_some(session)
            async with begun(session, power.home / "apart.db") as (pid, _):
                proc = Path(f"/proc/{pid}")
                names = {
                    line.split(b"=")[0] for line in (proc / "environ").read_bytes().split(b"\0")
                }
                arguments = (proc / "cmdline").read_bytes()
                files = open_files(pid)
                nice = int((proc / "stat").read_text().rpartition(")")[2].split()[16])
                session_of_process = os.getsid(pid)

    assert names <= {b"", b"LD_LIBRARY_PATH", b"PATH", b"TMPDIR"}
    keyring = session.volume.keyring
    assert keyring.hash_key not in arguments
    assert str(power.home) not in arguments.decode()
    kinds = {name.split(":")[0] for name in files}
    assert {name for name in files if name.startswith("/")} <= {"/dev/null", "/dev/urandom"}, files
    assert kinds <= {"/dev/null", "/dev/urandom", "socket", "pipe", "anon_inode"}, files
    assert nice == min(os.getpriority(os.PRIO_PROCESS, 0) + NICE, 19)
    assert session_of_process == pid


async def test_cancelled_restore_terminates_its_process(plain: Power) -> None:
    async with plain.session(tasks=False) as session:
        await ship_some(session)
        async with begun(session, plain.home / "apart.db") as (pid, _):
            pass
    assert pid not in children()


async def test_kill_of_a_restore_process_does_not_affect_the_next_restore(plain: Power) -> None:
    target = plain.home / "apart.db"
    async with plain.session(tasks=False) as session:
        await ship_some(session)
        async with begun(session, target) as (pid, outcome):
            os.kill(pid, signal.SIGKILL)
            with trio.fail_after(WAIT_S_MAX):
                await outcome.has_failed.wait()
        link = await restorer_of(session).restore(newest_of(session), target, session.link.txg)

    assert "the process that restores the database failed: killed by signal 9" in outcome.message
    assert link.txg == session.link.txg


_DAEMON = """
import os, socket, subprocess, sys, trio
from pathlib import Path
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.sync.image.restore_process import ProcessRestorer

class Store:
    url = "memory://"
    def list(self, prefix, *, after=""):
        print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
        return self._never()
    async def _never(self):
        await trio.sleep_forever()
        yield

restorer = ProcessRestorer(Store(), Keyring(None, bytes(32)), "-")
trio.run(restorer.restore, None, Path(sys.argv[1]), 1)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_restore_process_exits_when_the_daemon_is_killed(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-c", _DAEMON, str(tmp_path / "restored.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        ends = os.pidfd_open(pid)
        daemon.send_signal(number)

        async def wait() -> None:
            with trio.fail_after(WAIT_S_MAX):
                await trio.lowlevel.wait_readable(ends)

        trio.run(wait)
        os.close(ends)


def test_errors_of_the_restore_process_have_their_original_messages() -> None:
    """Errors of the restore process keep their errno or their class name."""
    full = error_of(fields_of_error(OSError(errno.ENOSPC, "full", "/path")))
    assert isinstance(full, OSError)
    assert (full.errno, full.strerror, full.filename) == (errno.ENOSPC, "full", "/path")

    bug = error_of(fields_of_error(KeyError("wrong")))
    assert isinstance(bug, RuntimeError)
    assert "KeyError: 'wrong'" in str(bug)


async def test_restore_process_cannot_write_objects() -> None:
    """The restore process has no request that writes objects."""
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        store = DaemonStore(Connection(trio.SocketStream(ours)), "memory://")
        key = ObjectKey("lease")
        for write in (store.put, store.create):
            with pytest.raises(NotImplementedError):
                await write(key, b"")
        with pytest.raises(NotImplementedError):
            await store.replace(key, b"", "")
        with pytest.raises(NotImplementedError):
            await store.delete([key])


async def test_longest_object_fits_into_a_message_to_the_restore_process() -> None:
    ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
    async with ours, theirs, trio.open_nursery() as nursery:
        nursery.start_soon(Connection(ours).send, {"number": 1}, bytes(ENCODED_BYTES_MAX))
        message = await Connection(theirs).receive()

    assert message is not None
    assert len(message.body) == ENCODED_BYTES_MAX


async def test_foreign_objects_with_long_keys_do_not_prevent_a_restore(power: Power) -> None:
    """The keys of a complete page would exceed the limit of a message."""
    async with power.session(tasks=False) as session:
        await ship_some(session)
        for number in range(LIST_PAGE_KEYS + 1):
            power.store.objects[ObjectKey(f"image/{number:04}" + 900 * "\x01")] = b""
        target = power.home / "restored.db"

        link = await restorer_of(session).restore(newest_of(session), target, session.link.txg)

        assert link == session.link
