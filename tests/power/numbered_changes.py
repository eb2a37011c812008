"""Changes that are derived from a seed, and the trees that a power cut may leave.

The module computes the tree after each change, performs the changes, and compares the result with a
tree found after a cut. It does not depend on the kind of power cut. The progress is two numbers:
how many changes are durable, and how many have begun. A host can report both numbers over any
connection before it is killed.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.power.ordered_load import Act, Change, Choices, Tree

# One write request contains a change up to this size, so the change leaves no hole.
BYTES_MAX: Final = 100_000
# The possible fractions of synced changes; a test's seed selects one fraction.
SYNCED_SHARES: Final = (0.2, 0.03, 0.01, 0.0)
PIECE_BYTES: Final = 4096  # The kernel reads pieces of at least 4 KiB.
_SIZED: Final = frozenset({Act.PUT, Act.APPEND, Act.OVERWRITE})

FileId = int
Sizes = dict[str, int | None]  # Maps each path to its file size, or to None for a directory.


@dataclass(frozen=True)
class State:
    """A tree whose files have identities that a rename does not change."""

    tree: Tree = field(default_factory=dict)
    files: dict[str, FileId] = field(default_factory=dict)
    next_file: FileId = 0

    @property
    def sizes(self) -> Sizes:
        """Return the sizes of all entries by path."""
        return {name: None if data is None else len(data) for name, data in self.tree.items()}

    def content(self, file: FileId) -> bytes | None:
        """Return the content of a file, or None if the file does not exist."""
        return next((self.tree[name] for name, one in self.files.items() if one == file), None)

    def after(self, change: Change) -> "State":
        """Return the state of the tree after a change."""
        tree, files, next_file = dict(self.tree), dict(self.files), self.next_file
        change.apply(tree)
        if change.act is Act.RENAME:
            files[change.new_name] = files.pop(change.name)
        elif change.act is Act.PUT and change.name not in files:
            files[change.name] = next_file
            next_file += 1
        return State(tree, {name: files[name] for name in files if name in tree}, next_file)


class Progress(NamedTuple):
    """The number of durable changes and the number of started changes at a power cut."""

    promised: int  # The number of durable changes.
    begun: int


class Verdict(NamedTuple):
    """The result of comparing a tree with the states that a power cut may leave."""

    number: int  # The number of changes that are visible in the names and sizes of the tree.
    lost: set[str]  # Files of which some bytes are unreadable.


class NumberedChanges:
    """The changes that a seed determines, and the states between these changes."""

    def __init__(self, seed: int) -> None:
        self._choices = Choices(0, seed, BYTES_MAX, synced_share=SYNCED_SHARES[seed % 4])
        self.states = [State()]
        self.changes: list[Change] = []

    def change(self, number: int) -> Change:
        """Return the change with a given number."""
        while len(self.changes) <= number:
            self.changes.append(self._choices.next_change(self.states[-1].tree))
            self.states.append(self.states[-1].after(self.changes[-1]))
        return self.changes[number]

    def perform(
        self, root: Path, began: Callable[[int], None], ended: Callable[[int], None]
    ) -> None:
        """Make changes one after another until the filesystem refuses a change."""
        number = 0
        while True:
            change = self.change(number)
            began(number)
            change.perform(root)
            ended(number)
            number += 1

    def progress(self, begun: int, ended: int) -> Progress:
        """Return the progress for a number of started and a number of finished changes."""
        synced = [number for number in range(ended) if self.change(number).synced]
        return Progress(max(synced, default=-1) + 1, begun)

    # --- checking a tree after a power cut -------------------------------------------------------

    def judge(self, root: Path, progress: Progress) -> Verdict:
        """Compare a tree with the allowed states.

        Raises AssertionError if a durable change is missing, if the existing changes are not a
        prefix of all changes, or if the tree has bytes that no change wrote.
        """
        self.change(progress.begun)
        found = _sizes_of(root)
        candidates = [
            state
            for number in range(progress.begun, progress.promised - 1, -1)
            for state in self._candidates(number, found, progress)
        ]
        assert candidates, self._explain(found, progress)
        problems = []
        for number, state in candidates:
            try:
                return self._judge_contents(root, number, state, progress)
            except AssertionError as exc:
                problems.append(f"as {number} changes: {exc}")
        raise AssertionError("\n".join(problems))

    def _candidates(self, number: int, found: Sizes, progress: Progress) -> list[tuple[int, State]]:
        state = self.states[number]
        if state.sizes == found:
            return [(number, state)]
        if number == progress.begun or not _may_be_incomplete(self.changes[number], state, found):
            return []
        return [(number, self.states[number + 1])]

    def _judge_contents(self, root: Path, number: int, state: State, progress: Progress) -> Verdict:
        verdict = Verdict(number, set())
        window = self.states[progress.promised : progress.begun + 1]
        for name, file in state.files.items():
            contents = [one.content(file) for one in window]
            versions = [content for content in contents if content is not None]
            _judge_file(root, name, versions, verdict, is_new=contents[0] is None)
        return verdict

    def _explain(self, found: Sizes, progress: Progress) -> str:
        lines = [f"no prefix of {progress.promised} to {progress.begun} changes"]
        for number in range(progress.promised, progress.begun + 1):
            expected = self.states[number].sizes
            names = sorted(
                name
                for name in expected.keys() | found.keys()
                if expected.get(name, -1) != found.get(name, -1)
            )
            reported = [
                f"{one}: {expected.get(one, '-')} not {found.get(one, '-')}" for one in names
            ]
            lines.append(f"after {number}: {', '.join(reported[:4])}")
        return "\n".join(lines[:20])


def _may_be_incomplete(change: Change, state: State, found: Sizes) -> bool:
    """Return True if the tree contains only a part of a change."""
    sizes = state.sizes
    names = {
        name for name in sizes.keys() | found.keys() if sizes.get(name, -1) != found.get(name, -1)
    }
    if change.act not in _SIZED or names != {change.name}:
        return False
    # The file was created or truncated, but not written.
    return change.act is Act.PUT and found.get(change.name) == 0


def _judge_file(
    root: Path, name: str, versions: list[bytes], verdict: Verdict, *, is_new: bool
) -> None:
    fd = os.open(root / name, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        for start in range(0, size, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, size)
            pieces = {version[start:stop] for version in versions}
            data = _read(fd, start, stop)
            if data is None:
                assert is_new or len(pieces) > 1, f"{name} is lost at {start}"
                verdict.lost.add(name)
            elif data not in pieces:
                _judge_bytes(name, start, data, versions)
    finally:
        os.close(fd)


def _read(fd: int, start: int, stop: int) -> bytes | None:
    try:
        data = os.pread(fd, stop - start, start)
    except OSError as exc:
        if exc.errno != errno.EIO:
            raise
        return None
    assert len(data) == stop - start, "the read returned fewer bytes than requested"
    return data


def _judge_bytes(name: str, start: int, data: bytes, versions: list[bytes]) -> None:
    for offset, byte in enumerate(data, start):
        allowed = {version[offset] for version in versions if offset < len(version)}
        assert byte in allowed, f"{name} at {offset}: {byte} is none of {allowed}"


def _sizes_of(root: Path) -> Sizes:
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.stat().st_size
        for path in root.rglob("*")
        if path.name != "d"
    }
