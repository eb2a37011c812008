"""Tests of random requests by concurrent tasks, during uploads, evictions and outages.

A model predicts the results. Virtual time passes faster than real time, so that outages and pauses
between retries are short.
"""

import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import MockClock
from typing_extensions import override

from s3fs_meta.check.report import Report, Severity
from s3fs_meta.check.run import CacheDirectory, Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.errors import StoreUnavailableError, TransientStoreError
from s3fs_meta.fs.content.file_ranges import KEEP_SIZE, PUNCH_HOLE
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import KIB
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.model import AccessTime, Ino
from s3fs_meta.mount_state import MountState
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.objects.retry import RetryingStore, RetryPolicy
from s3fs_meta.options.settings import FilesystemOptions, SessionOptions
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import WRITES, Fault, FaultKind, FaultyStore
from s3fs_meta.testing.sudden_end import kill
from tests.fast_folders import fast_folder
from tests.fs.conftest import BLOCK_BYTES, make_file, whole
from tests.sampled import sampled

pytestmark = pytest.mark.thorough

_FILES: Final = 4
_WRITERS: Final = 4
_READERS: Final = 2
_FILE_BLOCKS: Final = 6
_CACHED_BLOCKS: Final = (6, 12, 40)
_STEPS: Final = 30  # Number of requests of each task.
_RATES: Final = (500.0, 3_000.0, 20_000.0)  # Virtual seconds per real second.
_RUN_S_MAX: Final = 500.0  # A busy machine completes every run within this time.
_OUTAGE_S_MAX: Final = 60.0
_NO_TIMEOUT_S: Final = 1e9
_BOUNDS: Final = UploadBounds(
    seal_age_s=0.5, seal_linger_s=2.0, pack_bytes=4 * BLOCK_BYTES, batch_bytes=8 * BLOCK_BYTES
)


class _Weather(FaultyStore):
    """A store whose responses are slow, fail or are lost at random."""

    def __init__(self, inner: MemoryStore, rng: random.Random) -> None:
        super().__init__(inner)
        self._rng = rng
        self.delay_s_max = 0.0
        self.failures = 0.0  # The share of requests that fail.

    @override
    async def enter(self, method: str, key: str) -> Fault | None:
        fault = await super().enter(method, key)
        await trio.sleep(self._rng.random() * self.delay_s_max)
        if self._rng.random() < self.failures:
            if method in WRITES and self._rng.random() < 1 / 2:
                return Fault(FaultKind.LOSE_REPLY)
            raise TransientStoreError(key, "the connection to the store was reset")
        return fault


class _File:
    """A file and all versions of its content. Only one task at a time changes the file."""

    def __init__(self, ino: Ino) -> None:
        self.ino = ino
        self.contents = [b""]
        self.begun = b""  # The content after the change in progress.
        self.lock = trio.Lock()

    @property
    def now(self) -> bytes:
        """Return the current content of the file."""
        return self.contents[-1]

    def check(self, since: int, offset: int, length: int, found: bytes) -> None:
        """Require that each byte of a read was in the file at some time since the read began."""
        allowed = [one[offset : offset + length] for one in [*self.contents[since:], self.begun]]
        if found in allowed:
            return
        lengths = [len(one) for one in allowed]
        assert min(lengths) <= len(found) <= max(lengths)
        for position, byte in enumerate(found):
            assert byte in {one[position] for one in allowed if position < len(one)}, position


class _Run:
    """One filesystem, its model, and the tasks that use the filesystem and the model."""

    def __init__(self, seed: int, home: Path) -> None:
        self.rng = random.Random(seed)
        self.home = home
        self.memory = MemoryStore()
        self.weather = _Weather(self.memory, self.rng)
        self.files: list[_File] = []
        self._pieces = [self.rng.randbytes(BLOCK_BYTES) for _ in range(3)]
        self.fs: Filesystem
        self.session: Session

    # --- mounts --------------------------------------------------------------------------------

    async def open(self, host: str) -> None:
        """Mount the filesystem on a host."""
        opened = await open_filesystem(
            RetryingStore(self.weather, RetryPolicy(total_s_max=_NO_TIMEOUT_S)),
            StateDir(self.home / host),
            Passphrase(bytes),
            SystemClock(),
            OpenOptions(
                pragmas=self.rng.choice((Pragmas(), Pragmas(synchronous="off"))),
                force_takeover=True,
            ),
        )
        options = SessionOptions(
            cache_bytes=self.rng.choice(_CACHED_BLOCKS) * BLOCK_BYTES,
            read_timeout_s=_NO_TIMEOUT_S,
            write_timeout_s=_NO_TIMEOUT_S,
            sync_interval_s=1.0,
            image_interval_s=20.0,
        )
        self.session = Session(opened, options, SystemClock(), bounds=_BOUNDS)
        self.session.recover()
        self.session.start()
        self.fs = Filesystem(
            opened.db,
            self.session.cache,
            self.session.status,
            SystemClock(),
            FilesystemOptions(access_time=AccessTime.NEVER),
            sync_file=self.session.durability.sync_file,
        )

    async def use(self) -> None:
        """Run the tasks of the mount, and random requests until all requests are complete."""
        async with trio.open_nursery() as background:
            background.start_soon(self.session.run)
            background.start_soon(self.fs.run)
            background.start_soon(self._change_weather)
            background.start_soon(self._disturb)
            async with trio.open_nursery() as requests:
                for _ in range(_WRITERS):
                    requests.start_soon(self._write)
                for _ in range(_READERS):
                    requests.start_soon(self._read)
            background.cancel_scope.cancel()
        self._calm()

    async def compare(self) -> None:
        """Require that the mount is not degraded and all files have the content of the model."""
        assert self.session.status.state is MountState.SERVING, self.session.status.why
        for file in self.files:
            assert await whole(self.fs, file.ino) == file.now

    async def check(self) -> None:
        """Require that fsck finds no damage in the rows, the cached blocks and the packs."""
        opened = self.session.volume
        self.session.durability.commit()
        cache = CacheDirectory(opened.state_dir.blocks, opened.state_dir.tmp)
        examined = Examined(opened.db, self.memory, opened.keyring, cache)
        report = await check_filesystem(examined, FsckOptions(deep=True), Report(), SystemClock())
        assert not [one for one in report.verdicts if one.severity is Severity.DAMAGE]

    # --- tasks ---------------------------------------------------------------------------------

    async def _write(self) -> None:
        for _ in range(_STEPS):
            file = self.rng.choice(self.files)
            async with file.lock:
                change = self.rng.choice(
                    (self._overwrite, self._overwrite, self._cut, self._punch, self._sync)
                )
                await change(file)
            if self.rng.random() < 1 / 5:
                await self._copy(*self.rng.sample(self.files, 2))
            await self._pause()

    async def _overwrite(self, file: _File) -> None:
        offset = self.rng.randrange(_FILE_BLOCKS * BLOCK_BYTES)
        offset -= offset % self.rng.choice((1, 4 * KIB, BLOCK_BYTES))
        length = self.rng.choice((1, 4 * KIB, BLOCK_BYTES, 2 * BLOCK_BYTES + 5))
        data = (self.rng.choice([*self._pieces, bytes(BLOCK_BYTES)]) * 3)[:length]
        file.begun = file.now.ljust(offset, b"\0")[:offset] + data + file.now[offset + length :]
        assert await self.fs.write(file.ino, offset, data) == length
        file.contents.append(file.begun)

    async def _cut(self, file: _File) -> None:
        size_bytes = self.rng.randrange(_FILE_BLOCKS * BLOCK_BYTES)
        file.begun = file.now[:size_bytes].ljust(size_bytes, b"\0")
        await self.fs.data.truncate(file.ino, size_bytes)
        file.contents.append(file.begun)

    async def _punch(self, file: _File) -> None:
        offset, length = sorted(self.rng.randrange(_FILE_BLOCKS * BLOCK_BYTES) for _ in range(2))
        end = min(offset + length + 1, len(file.now))
        zeros = bytes(max(end - offset, 0))
        file.begun = file.now[:offset] + zeros + file.now[offset + len(zeros) :]
        await self.fs.ranges.allocate(file.ino, PUNCH_HOLE | KEEP_SIZE, offset, length + 1)
        file.contents.append(file.begun)

    async def _copy(self, source: _File, target: _File) -> None:
        """Copy a part of a file to the same position in another file, sharing complete blocks."""
        first, second = sorted((source, target), key=lambda one: one.ino)
        async with first.lock, second.lock:
            offset = self.rng.randrange(_FILE_BLOCKS) * BLOCK_BYTES
            data = source.now[offset : offset + 2 * BLOCK_BYTES]
            target.begun = target.now.ljust(offset if data else 0, b"\0")
            target.begun = target.begun[:offset] + data + target.begun[offset + len(data) :]
            done = 0
            while done < len(data):
                at = offset + done
                done += await self.fs.ranges.copy(source.ino, at, target.ino, at, len(data) - done)
            target.contents.append(target.begun)

    async def _sync(self, file: _File) -> None:
        await self.fs.sync_file(file.ino)

    async def _read(self) -> None:
        for _ in range(_STEPS):
            file = self.rng.choice(self.files)
            offset = self.rng.randrange(_FILE_BLOCKS * BLOCK_BYTES)
            length = self.rng.choice((1, 4 * KIB, BLOCK_BYTES, 4 * BLOCK_BYTES))
            since = len(file.contents) - 1
            file.check(since, offset, length, await self.fs.read(file.ino, offset, length))
            await self._pause()

    async def _pause(self) -> None:
        await trio.sleep(self.rng.choice((0.0, 0.0, 1.0, 5.0)) * self.rng.random())

    async def _change_weather(self) -> None:
        while True:
            self.weather.delay_s_max = self.rng.choice((0.0, 0.1, 10.0))
            self.weather.failures = self.rng.choice((0.0, 0.0, 0.3))
            if self.rng.random() < 1 / 5:
                self.weather.down = TransientStoreError(
                    "bucket", "the network of the store is unreachable"
                )
            await trio.sleep(self.rng.random() * _OUTAGE_S_MAX)
            self.weather.down = None

    def _calm(self) -> None:
        self.weather.delay_s_max = self.weather.failures = 0.0
        self.weather.down = None

    async def _disturb(self) -> None:
        session = self.session
        evictor, index = session.cache.evictor, session.cache.index
        events: list[Callable[[], object]] = [
            lambda: evictor.evict_bytes(1 << 60),
            session.durability.commit,
        ]
        slow_events: list[Callable[[], Awaitable[object]]] = [
            session.flush,
            session.make_image,
            session.compactor.run_once,
            session.durability.sync_all,
            lambda: evictor.drop(index.blocks()),
            lambda: session.cache.resize(self.rng.choice(_CACHED_BLOCKS) * BLOCK_BYTES),
        ]
        while True:
            self.rng.choice(events)()
            with (
                trio.move_on_after(self.rng.choice((0.5, 30.0, _NO_TIMEOUT_S))),
                contextlib.suppress(StoreUnavailableError),
            ):
                await self.rng.choice(slow_events)()
            await trio.sleep(self.rng.random() * 2)


async def _run(seed: int, home: Path) -> None:
    with trio.fail_after(_RUN_S_MAX * _RATES[seed % len(_RATES)]):
        run = _Run(seed, home)
        wanted = NewFilesystem("test", BLOCK_BYTES, 4096, None)
        await make_filesystem(run.memory, wanted, home, SystemClock())
        await run.open("a")
        run.files = [_File(make_file(run.fs, b"%d" % number)) for number in range(_FILES)]
        for host in ("a", "a", "b"):
            await run.use()
            await run.compare()
            await run.check()
            if host == "b":
                await run.session.flush()
            kill(run.session.volume)
            await run.open(host)
            await run.compare()
        kill(run.session.volume)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", sampled(range(30), 10))
def test_concurrent_requests_agree_with_the_model(seed: int) -> None:
    """Each read returns bytes that were in the file during the read.

    At the end every host has all bytes.
    """
    with fast_folder() as home:
        trio.run(_run, seed, home, clock=MockClock(rate=_RATES[seed % len(_RATES)]))
