"""A load of several writers, and a check of which changes survived a kill.

The module chooses changes of a tree, makes them with system calls, and searches a tree for each
writer's changes. It does not depend on how the load ends. Each change begins
after the previous one has returned. With its write-back cache, the kernel keeps written data until
``close``, which passes the data to the daemon. A change that has returned was therefore
acknowledged in full. Contents have no zeros, so that lost bytes are visible.
"""

import contextlib
import enum
import errno
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from typing_extensions import override

from tests.polling import PROCESS_S_MAX

Tree = dict[str, bytes | None]  # Maps each path to its file content, or to None for a directory.

FOLDERS: Final = ("", "d/")  # Folders that all writers share.
_NAMES: Final = 7  # The number of names that each writer has in each folder.
_GONE: Final = frozenset({errno.ENOTCONN, errno.ECONNABORTED})


class Act(enum.Enum):
    """The kinds of changes."""

    PUT = "put"  # Write the complete content of a new or existing file.
    APPEND = "append"
    OVERWRITE = "overwrite"
    TRUNCATE = "truncate"
    RENAME = "rename"
    UNLINK = "unlink"
    MAKE_DIRECTORY = "make directory"
    REMOVE_DIRECTORY = "remove directory"
    SYNC_FOLDER = "sync folder"


# The weight of each kind of change in a random choice.
_WEIGHTS: Final = {
    Act.PUT: 6.0,
    Act.APPEND: 4.0,
    Act.OVERWRITE: 3.0,
    Act.TRUNCATE: 2.0,
    Act.RENAME: 4.0,
    Act.UNLINK: 5.0,
    Act.MAKE_DIRECTORY: 1.0,
    Act.REMOVE_DIRECTORY: 1.5,
    Act.SYNC_FOLDER: 0.2,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a tree."""

    act: Act
    name: str
    new_name: str = ""
    data: bytes = b""
    at: int = 0  # The offset of a write, or the new size of a truncated file.
    synced: bool = False

    @property
    def names(self) -> set[str]:
        """Return the names that the change affects."""
        return {self.name, self.new_name} - {""}

    def apply(self, tree: Tree) -> None:
        """Apply the change to a tree in memory."""
        old = tree.get(self.name) or b""
        if self.act is Act.RENAME:
            tree[self.new_name] = tree.pop(self.name)
        elif self.act in {Act.UNLINK, Act.REMOVE_DIRECTORY}:
            del tree[self.name]
        elif self.act is Act.MAKE_DIRECTORY:
            tree[self.name] = None
        elif self.act is Act.PUT:
            tree[self.name] = self.data
        elif self.act is Act.TRUNCATE:
            tree[self.name] = old[: self.at].ljust(self.at, b"\0")
        elif self.act in {Act.APPEND, Act.OVERWRITE}:
            at = self._start(old)
            tree[self.name] = old[:at] + self.data + old[at + len(self.data) :]

    def _start(self, old: bytes) -> int:
        return len(old) if self.act is Act.APPEND else self.at

    def may_be_incomplete(self, before: Tree, found: Tree) -> bool:
        """Return True if a tree may contain only a part of this change."""
        if self.act not in {Act.PUT, Act.APPEND, Act.OVERWRITE}:
            return False  # Only a write can be incomplete.
        old, content = before.get(self.name) or b"", found.get(self.name)
        if content is None:
            return False
        after = dict(before)
        self.apply(after)
        new = after[self.name] or b""
        shortest = 0 if self.act is Act.PUT else len(old)
        if not shortest <= len(content) <= max(len(old), len(new)):
            return False
        return _is_mixture(content, old, new)

    def perform(self, root: Path) -> None:
        """Make the change on the filesystem; it is acknowledged when this method returns."""
        path = root / self.name
        if self.act is Act.RENAME:
            path.rename(root / self.new_name)
        elif self.act is Act.UNLINK:
            path.unlink()
        elif self.act is Act.MAKE_DIRECTORY:
            path.mkdir()
        elif self.act is Act.REMOVE_DIRECTORY:
            path.rmdir()
        elif self.act is Act.TRUNCATE:
            os.truncate(path, self.at)
        else:
            self._write(path)

    def _write(self, path: Path) -> None:
        flags = {
            Act.PUT: os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
            Act.APPEND: os.O_WRONLY | os.O_APPEND,
            Act.OVERWRITE: os.O_WRONLY,
            Act.SYNC_FOLDER: os.O_RDONLY,
        }[self.act]
        with contextlib.ExitStack() as stack:
            fd = os.open(path, flags, 0o644)
            stack.callback(os.close, fd)  # close(2) fails if write-back of the file has failed.
            if self.act is not Act.SYNC_FOLDER:
                if self.at:
                    os.lseek(fd, self.at, os.SEEK_SET)
                assert os.write(fd, self.data) == len(self.data)
            if self.synced:
                os.fsync(fd)


def _is_mixture(content: bytes, old: bytes, new: bytes) -> bool:
    """Return True if every byte is the old byte, the new byte or zero."""
    if new.startswith(content) or content == old:
        return True
    size = len(content)
    return all(
        byte in {one, other, 0}
        for byte, one, other in zip(content, _sized(old, size), _sized(new, size), strict=True)
    )


def _sized(data: bytes, size: int) -> bytes:
    return data[:size].ljust(size, b"\0")


class Choices:
    """A random selection of changes for one writer, determined by a seed."""

    def __init__(
        self, writer: int, seed: int, bytes_max: int, *, synced_share: float = 0.2
    ) -> None:
        self._dice = random.Random(seed)
        self._synced_share = synced_share
        self._bytes_max = bytes_max
        self._prefix = prefix_of(writer)
        # Several writes use the same content, so that some blocks are duplicates.
        self._common = [self._content() for _ in range(3)]
        self._places = [f"{folder}{self._prefix}{n}" for folder in FOLDERS for n in range(_NAMES)]

    def next_change(self, tree: Tree) -> Change:
        """Return a random change that can be applied to a tree."""
        files = sorted(name for name, content in tree.items() if content is not None)
        directories = sorted(tree.keys() - set(files))
        free = [place for place in self._places if place not in tree]
        acts = [Act.SYNC_FOLDER]
        acts += [Act.PUT] if files or free else []
        acts += [Act.APPEND, Act.OVERWRITE, Act.TRUNCATE, Act.UNLINK] if files else []
        acts += [Act.RENAME] if len(files) > 1 else []
        acts += [Act.MAKE_DIRECTORY] if free else []
        acts += [Act.REMOVE_DIRECTORY] if directories else []
        act = self._dice.choices(acts, [_WEIGHTS[one] for one in acts])[0]
        if act is Act.MAKE_DIRECTORY:
            return Change(act, self._dice.choice(free))
        if act is Act.REMOVE_DIRECTORY:
            return Change(act, self._dice.choice(directories))
        return self._change_of_file(act, files, files + free, tree)

    def _change_of_file(self, act: Act, files: list[str], places: list[str], tree: Tree) -> Change:
        synced = self._dice.random() < self._synced_share
        if act is Act.SYNC_FOLDER:
            return Change(act, self._dice.choice((".", "d")), synced=True)
        if act is Act.PUT:
            name = self._dice.choice(places)
            return Change(act, name, data=self._content(), synced=synced)
        name = self._dice.choice(files)
        if act is Act.RENAME:
            others = [place for place in places if place != name]
            return Change(act, name, new_name=self._dice.choice(others))
        size = len(tree[name] or b"")
        if act is Act.TRUNCATE:
            return Change(act, name, at=self._dice.randint(0, size + size // 4))
        if act is Act.APPEND and size < self._bytes_max:
            return Change(act, name, data=self._content(), synced=synced)
        if act is Act.OVERWRITE:
            at = self._dice.randint(0, size)
            return Change(act, name, data=self._content(), at=at, synced=synced)
        return Change(Act.UNLINK, name)

    def _content(self) -> bytes:
        if hasattr(self, "_common") and self._dice.random() < 0.1:
            return self._dice.choice(self._common)
        size = int(self._bytes_max ** self._dice.random())
        return self._dice.randbytes(size).replace(b"\0", b"\1")


def prefix_of(writer: int) -> str:
    """Return the prefix of all names that a writer uses."""
    return f"w{writer}-"


@dataclass(slots=True)
class Step:
    """A change with its start time and its end time, which is None if the change did not return."""

    change: Change
    began_ns: int
    ended_ns: int | None = None


class Writer(threading.Thread):
    """A thread that makes changes until it is stopped or the mount is dead."""

    def __init__(self, root: Path, tree: Tree, choices: Choices, ending: threading.Event) -> None:
        super().__init__(daemon=True)
        self._root, self._choices, self._ending = root, choices, ending
        self._tree = dict(tree)
        self.steps: list[Step] = []
        self.trouble: Exception | None = None

    @override
    def run(self) -> None:
        """Make changes until the load ends."""
        try:
            while not self._ending.is_set():
                self._take_step()
        except Exception as exc:  # noqa: BLE001 - the waiting thread raises it again
            if not self._is_gone():
                self.trouble = exc
                self._ending.set()

    def _is_gone(self) -> bool:
        """Return True if the mount is dead, so that write-back fails with EIO."""
        try:
            os.statvfs(self._root)  # The kernel does not cache statfs.
        except OSError as exc:
            return exc.errno in _GONE
        return False

    def _take_step(self) -> None:
        change = self._choices.next_change(self._tree)
        step = Step(change, time.monotonic_ns())
        self.steps.append(step)
        change.perform(self._root)
        step.ended_ns = time.monotonic_ns()
        change.apply(self._tree)


class Load:
    """Writers that share a tree, and continue from the tree found after the last kill."""

    def __init__(self, root: Path, writers: int, seed: int, bytes_max: int) -> None:
        self.root = root
        self.bases: list[Tree] = [{} for _ in range(writers)]
        self.steps: list[list[Step]] = [[] for _ in range(writers)]
        self._choices = [Choices(one, 1000 * seed + one, bytes_max) for one in range(writers)]

    @contextlib.contextmanager
    def running(self) -> Iterator[threading.Event]:
        """Run the writers while the context is active; if a writer fails, stop all writers."""
        ending = threading.Event()
        writers = [
            Writer(self.root, base, choices, ending)
            for base, choices in zip(self.bases, self._choices, strict=True)
        ]
        for writer in writers:
            writer.start()
        try:
            yield ending
        finally:
            ending.set()
            for writer in writers:
                writer.join(PROCESS_S_MAX)
                assert not writer.is_alive(), "a writer did not stop in time"
            self.steps = [writer.steps for writer in writers]
        for writer in writers:
            if writer.trouble is not None:
                raise writer.trouble

    def judge(self, found: Tree, killed_ns: int) -> "Verdict":
        """Compare the tree with all steps, and continue from the tree.

        Raises AssertionError if a promised step is missing, or if the existing steps are not a
        prefix of all steps.
        """
        parts = [
            {path: data for path, data in found.items() if _writer_of(path) == number}
            for number in range(len(self.bases))
        ]
        assert sum(map(len, parts)) + 1 == len(found), "the tree has an entry that no writer made"
        windows = [
            window_of(base, steps, part)
            for base, steps, part in zip(self.bases, self.steps, parts, strict=True)
        ]
        verdict = Verdict(self.steps, windows, killed_ns)
        verdict.check_promises()
        verdict.check_order()
        self.bases, self.steps = parts, [[] for _ in parts]
        return verdict


def _writer_of(path: str) -> int:
    name = os.path.basename(path)
    return int(name[1:].split("-")[0]) if name.startswith("w") else -1


def tree_of(root: Path) -> Tree:
    """Return the content of all files and directories below *root*."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
    }


# --- tree of files after a power cut -------------------------------------------------------------


class Window(NamedTuple):
    """How many of a writer's steps survived; a range if the tree matches several numbers."""

    some: int  # The smallest number of steps that explains all effects in the tree.
    all: int  # The largest number of steps whose effects are all in the tree.


def window_of(base: Tree, steps: Sequence[Step], found: Tree) -> Window:
    """Return how many steps of a writer exist in a tree.

    Raises AssertionError if they are not a prefix of the writer's steps.
    """
    tree = dict(base)
    differing = {name for name in tree.keys() | found.keys() if _differ(tree, found, name)}
    nearest = (len(differing), 0, differing)
    hits: list[Window] = []
    for number in range(len(steps) + 1):
        nearest = min(nearest, (len(differing), number, set(differing)), key=lambda one: one[0])
        if not differing:
            hits.append(Window(number, number))
        if number == len(steps):
            break
        change = steps[number].change
        if differing and differing <= change.names and change.may_be_incomplete(tree, found):
            hits.append(Window(number + 1, number))
        change.apply(tree)
        for name in change.names:
            (differing.add if _differ(tree, found, name) else differing.discard)(name)
    if not hits:
        raise AssertionError(_explain(base, steps, found, nearest[1]))
    return Window(min(hit.some for hit in hits), max(hit.all for hit in hits))


def _differ(tree: Tree, found: Tree, name: str) -> bool:
    return (name in tree) != (name in found) or tree.get(name) != found.get(name)


def _explain(base: Tree, steps: Sequence[Step], found: Tree, number: int) -> str:
    tree = dict(base)
    for step in steps[:number]:
        step.change.apply(tree)
    lines = [f"no prefix of {len(steps)} changes; the nearest has {number}:"]
    for name in sorted(tree.keys() | found.keys()):
        if _differ(tree, found, name):
            lines.append(f"{name}: {_shape(tree, name)} expected, {_shape(found, name)} found")
            lines.append(_first_difference(tree.get(name), found.get(name)))
            lines += [
                f"    {one}: {_describe(step)}"
                for one, step in enumerate(steps)
                if name in step.change.names and abs(one - number) < 200
            ]
    return "\n".join(lines)


def _first_difference(expected: bytes | None, found: bytes | None) -> str:
    if not expected or not found:
        return ""
    differing = [
        at for at, (one, two) in enumerate(zip(expected, found, strict=False)) if one != two
    ]
    if not differing:
        return ""
    zeros = sum(found[at] == 0 for at in differing)
    return f"    {len(differing)} bytes differ from {differing[0]} on, {zeros} of them zeros"


def _shape(tree: Tree, name: str) -> str:
    if name not in tree:
        return "nothing"
    content = tree[name]
    return "a directory" if content is None else f"{len(content)} bytes"


def _describe(step: Step) -> str:
    change = step.change
    ended = "unanswered" if step.ended_ns is None else f"took {step.ended_ns - step.began_ns} ns"
    size = f"{len(change.data)} bytes at {change.at}"
    synced = "synced" if change.synced else ""
    return f"{change.act.name} {change.name} {change.new_name} {size} {synced} {ended}"


@dataclass
class Verdict:
    """The steps that survived a kill, for all writers."""

    steps: Sequence[Sequence[Step]]
    windows: Sequence[Window]
    ended_ns: int  # The time at which the daemon was killed.
    slack_ns: int = 1_000_000_000  # GROUP_AGE_S_MAX plus the delays of a busy machine.

    @override
    def __str__(self) -> str:
        steps, there = sum(map(len, self.steps)), sum(window.all for window in self.windows)
        return f"{there} of {steps} changes, the oldest lost {self.age_of_lost_ns / 1e6:.1f} ms old"

    @property
    def age_of_lost_ns(self) -> int:
        """Return the age of the oldest acknowledged step that is lost, or 0 if no step is lost."""
        ends = [
            step.ended_ns
            for steps, window in zip(self.steps, self.windows, strict=True)
            for step in steps[window.all :]
            if step.ended_ns is not None
        ]
        return max((self.ended_ns - end for end in ends), default=0)

    def check_promises(self) -> None:
        """Require that no synced step is lost, and no step older than a commit group."""
        done_ns = max([self.ended_ns - self.slack_ns, *self._synced_ns()])
        for writer, (steps, window) in enumerate(zip(self.steps, self.windows, strict=True)):
            for number, step in enumerate(steps[window.all :], window.all):
                promised = step.ended_ns is not None and (
                    step.change.synced or step.ended_ns < done_ns
                )
                assert not promised, f"step {number} of writer {writer} is lost: {_describe(step)}"

    def _synced_ns(self) -> Iterator[int]:
        """Yield the start of each completed sync; steps that ended earlier must survive."""
        for steps in self.steps:
            for step in steps:
                if step.change.synced and step.ended_ns is not None:
                    yield step.began_ns

    def check_order(self) -> None:
        """Require that a step survives only if all steps that ended before its start survive."""
        missing = [
            step.ended_ns
            for steps, window in zip(self.steps, self.windows, strict=True)
            for step in steps[window.all :][:1]
            if step.ended_ns is not None
        ]
        there = [
            step.began_ns
            for steps, window in zip(self.steps, self.windows, strict=True)
            for step in steps[: window.some][-1:]
        ]
        if missing and there:
            assert max(there) <= min(missing), "a younger change exists, an older change is missing"
