"""Copying trees of a filesystem at one point in time.

Owns: the walk over the trees, and the number of files copied in parallel. Does not know: how a file
is created.
Keeps: a walk ends, and returns each directory once, even if damaged rows form a cycle or give a
directory several names. Memory does not grow with the tree, except for the names of files with
several hard links, and for about one bit per directory.
"""

import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import trio

from s3fs_meta.errors import UsageError
from s3fs_meta.export.copier import Copier, Empty, Tally, is_name
from s3fs_meta.limits import FILES_COPIED_AT_ONCE
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.trees.inode_set import InodeSet
from s3fs_meta.model import ROOT_INO, Attributes, Cookie
from s3fs_meta.sync.progress import Progress

_log = logging.getLogger(__name__)

_PAGE_NAMES: Final = 256  # number of names to read at a time
_BAD_NAME: Final = "its name is invalid"
REPEATED: Final = "the directory also has another name, under which it was found first"

Omit = Callable[[bytes, str], None]


class Step(NamedTuple):
    """One step of a walk over a tree: a name, or the end of a directory."""

    attributes: Attributes
    path: bytes
    left: bool = False  # True for the step that leaves a directory after its last entry


def log_omission(path: bytes, why: str) -> None:
    """Log an entry that a walk omits."""
    _log.error("%r is omitted: %s", os.fsdecode(path), why)


def _ignore_omission(_path: bytes, _why: str) -> None:
    """Ignore an omitted entry; the walk that copies the files reports it."""


def find(db: Database, path: bytes) -> list[Step]:
    """Return the steps to a path: its parent directories below the root, then the path.

    Symbolic links are not followed.

    Raises:
        UsageError: the path does not exist.
    """
    steps: list[Step] = []
    at, parent = b"", ROOT_INO
    for name in names_of(path):
        found = dentries.find_attributes(db, parent, name)
        if found is None:
            raise UsageError(f"the path {os.fsdecode(path)!r} did not exist at that point in time")
        at, parent = os.path.join(at, name), found.ino
        steps.append(Step(found, at))
    return steps


def names_of(path: bytes) -> list[bytes]:
    """Return the components of a path relative to the root.

    Raises:
        UsageError: the path contains "..".
    """
    names = [name for name in path.split(b"/") if name not in {b"", b"."}]
    if b".." in names:
        raise UsageError(f"the path {os.fsdecode(path)!r} contains '..', which is not supported")
    return names


def walk(
    db: Database,
    top: Step,
    *,
    page_names: int = _PAGE_NAMES,
    path_bytes_max: int | None = None,
    omit: Omit = log_omission,
) -> Iterator[Step]:
    """Yield the names below a directory; yield each directory before and after its content.

    Args:
        db: the database.
        top: the directory.
        page_names: the number of names to read at a time.
        path_bytes_max: the maximum length of a path; None: no path is too long.
        omit: called with the path and the fault of each omitted entry: its name is invalid, its
            path is too long, or it is a directory that was already found under another name.
    """
    stack: list[tuple[Step, Cookie]] = [(top, Cookie(0))]
    entered = InodeSet()
    entered.add(top.attributes.ino)
    while stack:
        directory, after = stack.pop()
        page = dentries.page(db, directory.attributes.ino, after, page_names)
        for name, cookie, attributes in page:
            if not is_name(name):
                omit(b"/".join([directory.path, name] if directory.path else [name]), _BAD_NAME)
                continue
            step = Step(attributes, os.path.join(directory.path, name))
            if path_bytes_max is not None and len(step.path) > path_bytes_max:
                omit(step.path, f"its path is longer than {path_bytes_max} bytes")
                continue
            is_directory = stat.S_ISDIR(attributes.mode)
            if is_directory and not entered.add(attributes.ino):
                omit(step.path, REPEATED)
                continue
            yield step
            if is_directory:
                stack += [(directory, cookie), (step, Cookie(0))]
                break
        else:
            if len(page) == page_names:
                stack.append((directory, page[-1][1]))
            else:
                yield directory._replace(left=True)


class Restoring:
    """Copies directory trees out of one metadata database."""

    def __init__(self, db: Database, copier: Copier, progress: Progress) -> None:
        self._db = db
        self._copier = copier
        self._progress = progress
        self._limiter = trio.Semaphore(FILES_COPIED_AT_ONCE)
        self._total = 0
        self._done = 0
        self.tally = Tally()

    async def copy(self, paths: Sequence[bytes]) -> None:
        """Copy the trees at paths, with their parent directories; by default copy all files.

        A path below another given path is copied only once. If the root itself is copied, the
        target directory receives the attributes of the root.

        Raises:
            UsageError: a path does not exist; nothing was copied.
            StoreError: the bucket cannot be reached.
            OSError: the target cannot be written.
        """
        root = Step(inodes.get(self._db, ROOT_INO), b"")
        routes = [[root, *find(self._db, path)] for path in paths or [b""]]
        self._total = self._db.counters.dentries
        if any(paths):
            counted = (self._below(route[-1], _ignore_omission) for route in routes)
            self._total = sum(1 for steps in counted for step in steps if not step.left)
        above: dict[bytes, Step] = {b"": root}
        copied: set[bytes] = set()
        async with trio.open_nursery() as nursery:
            for route in sorted(routes, key=len):
                if not any(step.path in copied for step in route):
                    copied.add(route[-1].path)
                    await self._copy_route(route, above, nursery)
        for path, step in sorted(above.items(), reverse=True):
            if path:
                self._finish_directory(step)
        self._copier.finish(self.tally)

    def _below(self, top: Step, omit: Omit) -> Iterator[Step]:
        """Yield one step of a walk, then the steps of the tree below it."""
        if top.path:
            yield top
        if stat.S_ISDIR(top.attributes.mode):
            most = self._copier.path_bytes_max
            yield from walk(self._db, top, path_bytes_max=most, omit=omit)

    async def _copy_route(
        self, route: list[Step], above: dict[bytes, Step], nursery: trio.Nursery
    ) -> None:
        """Create the parent directories of a path, and copy the tree at the path."""
        for step in route[:-1]:
            if step.path not in above:
                above[step.path] = step
                self._copier.make_directory(step.path)
        refused: bytes | None = None  # path of a directory that the target refused
        for step in self._below(route[-1], self._omit):
            if refused is not None:
                if not step.left:
                    self.tally.refuse(step.path, "its directory was not created")
                elif step.path == refused:
                    refused = None
                continue
            if step.left:
                self._finish_directory(step)
                continue
            if not stat.S_ISDIR(step.attributes.mode):
                await self._copy_file(step, nursery)
            elif not self._make_directory(step):
                refused = step.path
            self._done += 1
            self._progress("files", self._done, self._total)

    def _omit(self, path: bytes, why: str) -> None:
        is_long = len(path) > self._copier.path_bytes_max
        (self.tally.refuse if is_long else self.tally.omit)(path, why)

    def _make_directory(self, step: Step) -> bool:
        """Create a directory; return False if the target does not accept it."""
        refused = self.tally.refused_files
        with self.tally.noting_faults(step.path):
            self._copier.make_directory(step.path)
        return self.tally.refused_files == refused

    def _finish_directory(self, step: Step) -> None:
        with self.tally.noting_faults(step.path):
            self._copier.finish_directory(step.attributes, step.path)

    async def _copy_file(self, step: Step, nursery: trio.Nursery) -> None:
        again = step.attributes.nlink > 1
        empty = None
        with self.tally.noting_faults(step.path):
            empty = self._copier.make(step.attributes, step.path, again=again)
        if empty is None:
            return
        if not step.attributes.mapped_blocks:
            with self.tally.noting_faults(empty.path, empty.links):
                self.tally.add(await self._copier.fill(empty))
            return
        try:
            await self._limiter.acquire()
        except trio.Cancelled:
            os.close(empty.fd)
            raise
        nursery.start_soon(self._fill, empty)

    async def _fill(self, empty: Empty) -> None:
        try:
            with self.tally.noting_faults(empty.path, empty.links):
                self.tally.add(await self._copier.fill(empty))
        finally:
            self._limiter.release()
