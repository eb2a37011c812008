"""Pins: trees whose content is kept in the cache of this host.

Owns: the list of pins, the set of blocks that eviction must keep, and the task that downloads
missing blocks. Does not know: the control socket, the download of blocks (``warm``).
Keeps: pinned blocks stay within the limit of ``cache.pinned_trees``. If trees grow beyond the
limit, blocks that are already cached are pinned first.

A pin refers to a path, and applies to any inode at this path. If the path no longer exists, the pin
follows its inode to the new path; if the inode was removed, the pin is deleted. A check walks the
pinned trees after changes. Between checks, ``cache.pinned_trees`` keeps blocks written below a pin.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import trio

from s3fs_meta.background_task import in_thread_or_here
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.pinned_trees import PINNED_BLOCKS_MAX, pinned_bytes_max
from s3fs_meta.cache.slices import slices
from s3fs_meta.errors import (
    CorruptionError,
    NoSpaceLeftError,
    ObjectMissingError,
    S3fsError,
    SettingsError,
    ThreadShortageError,
    UsageError,
)
from s3fs_meta.fs.trees import inode_paths, pins_file, warm
from s3fs_meta.fs.trees.pins_file import Pin
from s3fs_meta.fs.trees.warm import TreeContent, mib
from s3fs_meta.limits import (
    PIN_CHECK_PART,
    PIN_CHECK_S,
    PIN_PATH_BYTES_MAX,
    PIN_RETRY_S,
    PINS_MAX,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Attributes, BlockId, Ino

_log = logging.getLogger(__name__)


class PinnedTree(NamedTuple):
    """One pinned tree and the sizes of its blocks; equal blocks are counted once."""

    path: str  # absolute path below the root of the filesystem
    total_bytes: int
    cached_bytes: int


class Pins:
    """The pinned trees of one mount, and the task that keeps them cached."""

    def __init__(
        self, db: Database, cache: BlockCache, state: Path, *, version: Callable[[], object]
    ) -> None:
        """Create an empty list of pins; ``load`` reads the file.

        Args:
            db: the database of the mount.
            cache: the block cache of the mount.
            state: the state directory, which contains the list of pins.
            version: returns a number that changes with each change of the filesystem.
        """
        self._db = db
        self._cache = cache
        self._state = state
        self._version = version
        self._pins: list[Pin] = []
        self._changed = trio.Event()
        self._is_due = False  # True if a check is due although no file has changed
        self._checking = trio.Lock()
        self._pauses = 0
        self._damaged: set[BlockId] = (
            set()
        )  # damaged blocks that this mount does not download again
        self.over_bytes = 0  # number of bytes by which pinned trees exceed the space for pins
        self.last_error = ""  # the error message of the last check or download
        self._is_unreadable = False

    async def load(self) -> None:
        """Before any eviction, read the pins of this host and pin their blocks; log errors."""
        try:
            self._pins = await in_thread_or_here(pins_file.read, self._state)
        except SettingsError as exc:
            self._is_unreadable = True
            _log.warning("no tree is pinned, because the list of pins is unreadable: %s", exc)
            return
        if not self._pins:
            return
        try:
            await self._check()
        except S3fsError as exc:
            _log.warning("cannot check which blocks of pinned trees are cached: %s", exc)
        if self.over_bytes:
            _log.warning(
                "%s of pinned trees stay uncached, because pins may use only %s of the cache",
                mib(self.over_bytes),
                mib(self._cache.pinned.bytes_max),
            )

    # --- pin and unpin trees -------------------------------------------------------------------

    def require_cache(self, cache_bytes: int) -> None:
        """Raise NoSpaceLeftError if a cache of the given size is too small for the pins.

        Raises:
            NoSpaceLeftError: the pinned blocks would exceed their share of the cache.
        """
        pinned_bytes = self._cache.index.pinned_bytes
        if pinned_bytes > pinned_bytes_max(cache_bytes):
            raise NoSpaceLeftError(
                f"pinned trees take up {mib(pinned_bytes)}, but may use at most"
                f" {mib(max(pinned_bytes_max(cache_bytes), 0))} of a cache of {mib(cache_bytes)};"
                " run s3fs-meta unpin first"
            )

    async def add(self, roots: Iterable[Ino]) -> None:
        """Pin trees durably, and keep their blocks from now on. The caller downloads the blocks.

        Raises:
            NoSpaceLeftError: all pins together would use too much of the cache, or are too many.
            UsageError: a tree has no path, or the path is too long.
            SettingsError: the list of pins cannot be read or written.
        """
        await self._require_readable()
        async with self._checking:
            inos = {pin.ino for pin in self._pins}
            new = [await self._new_pin(ino) for ino in dict.fromkeys(roots) if ino not in inos]
            await self._require_pinnable([*self._pins, *new])
            await self._set(self._pins + new)
        await self._check()

    async def _new_pin(self, ino: Ino) -> Pin:
        path = await inode_paths.path_of(self._db, ino)
        found = inodes.find(self._db, ino)
        if found is None or path is None:
            raise UsageError("a removed file or directory cannot be pinned")
        if len(path) > PIN_PATH_BYTES_MAX:
            raise UsageError(f"a pinned path can have at most {PIN_PATH_BYTES_MAX} bytes")
        return Pin(path, ino, found.btime_ns)

    async def _require_pinnable(self, wanted: list[Pin]) -> None:
        content = await self._content(wanted)
        most = self._cache.pinned.bytes_max
        if content.total_bytes + content.over_bytes > most:
            raise NoSpaceLeftError(
                "with this tree, the pinned trees would take up"
                f" {mib(content.total_bytes + content.over_bytes)}, but pins may use at most"
                f" {mib(max(most, 0))} of this cache of {mib(self._cache.bytes_max)}; raise"
                " cachesize with s3fs-meta set, unpin other trees, or warm without --pin"
            )
        if len(content.sizes) > PINNED_BLOCKS_MAX:
            raise NoSpaceLeftError(
                f"with this tree, {len(content.sizes)} blocks would be pinned in total, but at most"
                f" {PINNED_BLOCKS_MAX} blocks can be pinned; pin a part of the tree"
            )
        if len(wanted) > PINS_MAX:
            raise NoSpaceLeftError(
                f"at most {PINS_MAX} trees can be pinned; pin a directory that contains the trees"
            )

    async def remove(self, roots: Iterable[Ino]) -> None:
        """Unpin trees.

        Raises:
            UsageError: a tree is not pinned; nothing was changed.
            SettingsError: the list of pins cannot be read or written.
        """
        await self._require_readable()
        wanted = set(roots)
        async with self._checking:
            await self._follow_paths()
            if not wanted <= {pin.ino for pin in self._pins}:
                raise UsageError(
                    "a given path is not pinned itself, so nothing was unpinned; s3fs-meta pins lists"
                    " the pinned trees"
                )
            await self._set([pin for pin in self._pins if pin.ino not in wanted])
        await self._check()

    async def listing(self) -> list[PinnedTree]:
        """Return each pinned tree with its sizes.

        Raises:
            SettingsError: the list of pins cannot be read.
        """
        await self._require_readable()
        async with self._checking:
            await self._follow_paths()
            pins = self._pins
        found = []
        for pin in pins:
            content = await self._content([pin])
            path = f"/{os.fsdecode(pin.path)}"
            found.append(PinnedTree(path, content.total_bytes, content.cached_bytes))
        return found

    async def _require_readable(self) -> None:
        """Read the list of pins again after a failed read; raise SettingsError if it still fails."""
        if self._is_unreadable:
            self._pins = await in_thread_or_here(pins_file.read, self._state)
            self._is_unreadable = False

    async def _content(self, pins: Iterable[Pin]) -> TreeContent:
        roots = [pin.ino for pin in pins]
        return await warm.content_of(self._db, self._cache, roots, may_exceed=True)

    async def _set(self, pins: list[Pin]) -> None:
        """Replace the list of pins in memory and in the file."""
        await in_thread_or_here(pins_file.write, self._state, pins)
        self._pins = pins
        self.check_soon()

    def check_soon(self) -> None:
        """Request a check of the pinned trees. Never yields to other tasks."""
        self._is_due = True
        self._changed.set()
        self._changed = trio.Event()

    # --- check the pinned trees ----------------------------------------------------------------

    @contextlib.contextmanager
    def downloads_paused(self) -> Iterator[None]:
        """Pause new downloads by ``run`` in a ``with`` block, because a request downloads."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self.check_soon()

    async def run(self) -> None:
        """Check the pinned trees after changes, and download missing blocks, until cancelled."""
        seen: object = None
        while True:
            changed, index = self._changed, self._cache.index
            pause_s, version = PIN_CHECK_S, self._version()
            is_due = self._is_due or (version, index.kept_bytes) != seen
            if self._pins and not self._pauses and is_due:
                self._is_due = False
                began_s = trio.current_time()
                error = await self._check_quietly()
                pause_s = max(PIN_CHECK_S, PIN_CHECK_PART * (trio.current_time() - began_s))
                error = error or await self._download()
                self._note_error(error)
                if error is None or isinstance(error, CorruptionError | ObjectMissingError):
                    seen = (version, index.kept_bytes)
                else:
                    pause_s = max(pause_s, PIN_RETRY_S)
            with trio.move_on_after(pause_s):
                await changed.wait()

    def _note_error(self, error: S3fsError | None) -> None:
        text = "" if error is None else str(error)
        if text and text != self.last_error:
            _log.info("some content of the pinned trees may not be cached: %s", text)
        self.last_error = text

    async def _check_quietly(self) -> S3fsError | None:
        try:
            await self._check()
        except S3fsError as exc:
            return exc
        return None

    async def _download(self) -> S3fsError | None:
        """Download the pinned blocks that are not cached; return the first failure."""
        content = await self._content(self._pins)
        if not content.missing:
            return None

        def is_wanted(block: BlockId) -> bool:
            return self._cache.index.is_pinned(block) and block not in self._damaged

        done = await warm.download(self._db, self._cache, content, wanted=is_wanted)
        if isinstance(done.error, CorruptionError | ObjectMissingError):
            missing = [block for some in content.missing.values() for _offset, block in some]
            self._damaged.update(
                block for block in missing if is_wanted(block) and block not in self._cache.index
            )
        return done.error

    async def _check(self) -> None:
        """List the present blocks of pinned trees, and pin these instead of the previous blocks."""
        async with self._checking:
            await self._follow_paths()
            self._cache.pinned.set_roots(pin.ino for pin in self._pins)
            content, index = await self._content(self._pins), self._cache.index
            for former in slices(index.pinned()):
                for block in former:
                    if block not in content.sizes:
                        index.unpin(block)
                await trio.lowlevel.checkpoint()
            self.over_bytes = content.over_bytes
            blocks = list(content.sizes.items())
            for is_cached in (True, False):  # pin blocks that are already cached first
                for piece in slices(blocks):
                    self._pin_slice(piece, is_cached=is_cached)
                    await trio.lowlevel.checkpoint()
        self._cache.writers.wake()

    def _pin_slice(self, piece: Iterable[tuple[BlockId, int]], *, is_cached: bool) -> None:
        for block, size_bytes in piece:
            is_present = block in self._cache.index
            if is_present is is_cached and not self._cache.pinned.pin(block, size_bytes):
                self.over_bytes += size_bytes

    # --- follow renamed paths ------------------------------------------------------------------

    async def _follow_paths(self) -> None:
        """Update each pin's path and inode; delete the pins of removed trees."""
        pins: list[Pin] = []
        inos: set[Ino] = set()
        for pin in self._pins:
            found = await self._present(pin)
            if found is None:
                _log.info("unpinned %r, because the path was removed", os.fsdecode(pin.path))
            elif found.ino not in inos:
                inos.add(found.ino)
                pins.append(found)
            await trio.lowlevel.checkpoint()
        if pins != self._pins:
            await self._set(pins)

    async def _present(self, pin: Pin) -> Pin | None:
        """Return a pin with its current path and inode, or None if its inode was removed."""
        at = self._at(pin.path)
        if at is not None:
            return Pin(pin.path, at.ino, at.btime_ns)
        left = inodes.find(self._db, pin.ino)
        if left is None or left.btime_ns != pin.born_ns:
            return None
        try:
            path = await inode_paths.path_of(self._db, pin.ino)
        except ThreadShortageError:
            return pin  # a later check updates the path
        if path is None:
            return None
        return pin if len(path) > PIN_PATH_BYTES_MAX else pin._replace(path=path)

    def _at(self, path: bytes) -> Attributes | None:
        ino: Ino | None = ROOT_INO
        for name in path.split(b"/") if path else ():
            ino = None if ino is None else dentries.find(self._db, ino, name)
        return None if ino is None else inodes.find(self._db, ino)
