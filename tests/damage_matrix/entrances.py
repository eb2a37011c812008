"""The operations that the damage matrix tries on each damaged bucket: commands and mounts.

Commands run in this process, with the arguments that a user would type. Mounts are opened without
FUSE, because the kernel cannot change the effect of a damaged bucket.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio
from typing_extensions import override

from s3fs_meta.console import boundary, exits
from s3fs_meta.errors import S3fsError
from s3fs_meta.model import Txg
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.state_paths import locate
from s3fs_meta.sync.volume import OpenOptions
from tests.damage_matrix import build
from tests.damage_matrix.world import (
    BLOCK_BYTES,
    PASSPHRASE,
    Bucket,
    Host,
    Objects,
    Tree,
    World,
    bucket_of,
    host,
    past,
)
from tests.programs import QuickProgram

NEW: Final = b"/written after the damage"
NEW_BLOCKS: Final = (b"new" * 1000,)
BOUND_S: Final = 250


@dataclass
class Result:
    """The result of one command or mount on a damaged bucket."""

    status: int = 0
    said: str = ""
    txg: Txg | None = None  # The txg that the mount reported.
    tree: Tree | None = None  # The tree that was read through the mount.
    cached: bool = False  # True if the host had all content in its cache.
    wrote: bool = False  # True if the file NEW was written and uploaded through the mount.
    # The tree at each point in time, or the error message of a failed open.
    points: dict[Txg, Tree | str] = field(default_factory=dict)


class Cell:
    """One cell of the damage matrix: a damaged bucket, and a host that opens it."""

    def __init__(self, world: World, damaged: Objects, home: Path) -> None:
        self.world = world
        self.damaged = damaged
        self.home = home
        self.bucket = Bucket(home / "bucket")
        self.bucket.root.mkdir()
        self.program = QuickProgram(home / "state")
        if world.encrypted:
            self.program.environment["S3FS_META_PASSPHRASE"] = PASSPHRASE.decode()

    @property
    def state(self) -> Path:
        """Return the state directory of the host that opens the bucket."""
        return locate(self.bucket.url, self.program.cachedir)

    def with_state(self) -> None:
        """Copy the local state of the writer to this host."""
        self.state.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.world.state, self.state)

    @contextlib.asynccontextmanager
    async def opened(
        self, options: OpenOptions | None = None, *, follow: bool = False
    ) -> AsyncIterator[Host]:
        """Open the filesystem in the same way as a mount on this host."""
        async with (
            self.store() as store,
            host(
                store,
                self.state,
                encrypted=self.world.encrypted,
                options=options,
                follow=follow,
            ) as mounted,
        ):
            yield mounted

    def store(self) -> contextlib.AbstractAsyncContextManager[ObjectStore]:
        """Return the store of the bucket, opened in the same way as by a command."""
        return opened_store(self.bucket.url, S3Options())

    def command(self, *words: str | Path) -> Result:
        """Run one command of s3fs-meta."""
        done = self.program.run(*words)
        return Result(done.returncode, done.stdout + done.stderr)

    def run(self, body: Callable[[Result], Awaitable[None]]) -> Result:
        """Run an async function; convert an error into the exit status and message of a command."""
        result = Result()
        log = _Log()

        async def bounded() -> None:
            with trio.fail_after(BOUND_S):
                await body(result)

        with log.listening():
            try:
                trio.run(bounded)
            except Exception as exc:
                leaves = list(exits.leaves(exc))
                result.status = max(int(exits.status_of(leaf)) for leaf in leaves)
                if any(exits.status_of(leaf) is exits.ExitStatus.BUG for leaf in leaves):
                    raise
                result.said += boundary.text_of(leaves[0])
        result.said += log.text
        return result


class _Log(logging.Handler):
    """A collector of log lines with level WARNING or higher."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"\n{logging.Formatter().format(record)}"

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Collect log lines until the context ends."""
        logger = logging.getLogger("s3fs_meta")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


# --- operations that mount the bucket ----------------------------------------------------------


async def _show(result: Result, mounted: Host) -> None:
    result.txg = mounted.session.link.txg
    result.tree = await mounted.observe()
    result.said += "\n".join(mounted.session.volume.notices)


async def _work(result: Result, mounted: Host) -> None:
    """Read everything, then write a file and upload it."""
    await _show(result, mounted)
    await mounted.write(NEW[1:], *NEW_BLOCKS)
    await mounted.ship()
    result.wrote = True


def fresh_mount(cell: Cell) -> Result:
    """Another host mounts for writing."""
    cell.bucket.write(cell.damaged)

    async def body(result: Result) -> None:
        async with cell.opened() as mounted:
            await _work(result, mounted)

    return cell.run(body)


def mount_with_state(cell: Cell) -> Result:
    """The host that wrote the filesystem mounts it again."""
    cell.bucket.write(cell.damaged)
    cell.with_state()

    async def body(result: Result) -> None:
        result.cached = True
        async with cell.opened() as mounted:
            await _work(result, mounted)

    return cell.run(body)


def running_writer(cell: Cell) -> Result:
    """The bucket is damaged while the writer is mounted."""
    cell.bucket.write(cell.world.objects)
    cell.with_state()

    async def body(result: Result) -> None:
        result.cached = True
        async with cell.opened() as mounted:
            _damage_under(cell)
            await _work(result, mounted)
            await mounted.session.make_image()

    return cell.run(body)


def running_follower(cell: Cell) -> Result:
    """A follower mounts an early state of the bucket, and then polls the damaged bucket."""
    cell.bucket.write(cell.world.early)

    async def body(result: Result) -> None:
        options = OpenOptions(read_only=True, follow=True)
        async with cell.opened(options, follow=True) as mounted:
            cell.bucket.write(cell.damaged)
            assert mounted.session.follower is not None
            for _ in range(3):
                await mounted.session.follower.poll_once()
            await _show(result, mounted)
            result.said += mounted.session.follower.last_error

    return cell.run(body)


def promotion(cell: Cell) -> Result:
    """A follower that has applied all txgs is promoted after the damage."""
    cell.bucket.write(cell.world.objects)

    async def body(result: Result) -> None:
        options = OpenOptions(read_only=True, follow=True)
        async with cell.opened(options, follow=True) as mounted:
            cell.bucket.write(cell.damaged)
            await mounted.session.promote()
            await _work(result, mounted)

    return cell.run(body)


def read_only_mount(cell: Cell) -> Result:
    """Another host mounts read-only."""
    cell.bucket.write(cell.damaged)

    async def body(result: Result) -> None:
        async with cell.opened(OpenOptions(read_only=True)) as mounted:
            await _show(result, mounted)

    return cell.run(body)


def other_host(cell: Cell) -> Result:
    """Mount the bucket read-only on a host without local state; return the visible tree."""
    shutil.rmtree(cell.program.cachedir, ignore_errors=True)

    async def body(result: Result) -> None:
        async with cell.opened(OpenOptions(read_only=True)) as mounted:
            await _show(result, mounted)

    return cell.run(body)


def all_points(cell: Cell) -> Result:
    """Another host mounts every point in time, one after another."""
    cell.bucket.write(cell.damaged)
    return points_of(cell)


def points_of(cell: Cell) -> Result:
    """Mount every point in time of the bucket; return each tree or error message."""

    async def body(result: Result) -> None:
        async with cell.store() as store:
            bucket = await bucket_of(store, encrypted=cell.world.encrypted, state=cell.state)
            for txg in cell.world.points:
                try:
                    async with past(bucket, txg, cell.home / "past") as then:
                        result.points[txg] = await then.observe()
                except S3fsError as exc:
                    result.points[txg] = boundary.text_of(exc)

    result = cell.run(body)
    if result.points:
        result.status = 0
    for txg in cell.world.points:
        result.points.setdefault(txg, f"the bucket cannot be opened: {result.said}")
    return result


# --- operations that run a command -------------------------------------------------------------


def restore(cell: Cell) -> Result:
    """Another host restores the current state to a directory."""
    cell.bucket.write(cell.damaged)
    target = cell.home / "restored"
    result = cell.command("restore", "--to", target, cell.bucket.url)
    if target.exists():
        result.txg = build.LAST
        result.tree = _tree_on_disk(target)
    return result


def rollback(cell: Cell) -> Result:
    """Another host rolls back to a txg that is later than the newest image."""
    cell.bucket.write(cell.damaged)
    return cell.command("rollback", "--yes", "--at", "txg=12", cell.bucket.url)


def _fsck(does: str, *words: str, state: bool = False) -> Callable[[Cell], Result]:
    def run(cell: Cell) -> Result:
        cell.bucket.write(cell.damaged)
        if state:
            cell.with_state()
        result = cell.command("fsck", *words, cell.bucket.url)
        result.cached = state
        return result

    run.__doc__ = does
    return run


def reclaim(cell: Cell) -> Result:
    """Another host runs reclaim, but no object is old enough to be deleted."""
    cell.bucket.write(cell.damaged)
    return cell.command("reclaim", cell.bucket.url)


def passphrase(cell: Cell) -> Result:
    """Another host sets a new passphrase, and then the old one again."""
    cell.bucket.write(cell.damaged)
    old, new = cell.home / "old", cell.home / "new"
    old.write_bytes(PASSPHRASE)
    new.write_bytes(b"another passphrase")
    changed = cell.command("passphrase", "--new-passphrase-file", new, cell.bucket.url)
    if changed.status:
        return changed
    cell.program.environment["S3FS_META_PASSPHRASE"] = new.read_text()
    again = cell.command("passphrase", "--new-passphrase-file", old, cell.bucket.url)
    again.said = changed.said + again.said
    return again


ENTRANCES: Final[Mapping[str, Callable[[Cell], Result]]] = {
    "mount": fresh_mount,
    "mount, local state": mount_with_state,
    "running writer": running_writer,
    "running follower": running_follower,
    "promote": promotion,
    "mount -o ro": read_only_mount,
    "mount -o ro,at=": all_points,
    "restore": restore,
    "rollback": rollback,
    "fsck -n": _fsck("Another host runs fsck -n.", "-n"),
    "fsck -y": _fsck("Another host runs fsck -y.", "-y"),
    "fsck -y --deep": _fsck("Another host runs fsck -y and reads every pack.", "-y", "--deep"),
    "fsck -y --deep, local state": _fsck(
        "The host that wrote the filesystem runs fsck -y and reads every pack.",
        "-y",
        "--deep",
        state=True,
    ),
    "fsck --rebuild -y": _fsck(
        "Another host rebuilds metadata from packs and parts of images.", "--rebuild", "-y"
    ),
    "reclaim": reclaim,
    "passphrase": passphrase,
}


def _damage_under(cell: Cell) -> None:
    """Damage the bucket of a running mount, but keep the objects that the mount has uploaded."""
    now = cell.bucket.read()
    changed = {
        key
        for key in {*cell.damaged, *cell.world.objects}
        if cell.damaged.get(key) != cell.world.objects.get(key)
    }
    for key in changed:
        now.pop(key, None)
        if key in cell.damaged:
            now[key] = cell.damaged[key]
    cell.bucket.write(now)


def _tree_on_disk(target: Path) -> Tree:
    found: Tree = {b"": ()}
    for path in target.rglob("*"):
        name = b"/" + os.fsencode(path.relative_to(target))
        if path.is_symlink():
            found[name] = (os.fsencode(os.readlink(path)),)
        elif path.is_dir():
            found[name] = ()
        else:
            data = path.read_bytes()
            found[name] = tuple(
                data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES)
            )
    return found
