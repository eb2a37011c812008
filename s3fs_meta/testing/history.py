"""The states that a filesystem is allowed to have after a crash.

Owns: the states of a filesystem since the last commit, and comparing a tree after a crash with
these states. Does not know: how crashes are caused.
After the process is killed, all bytes written to block files exist, and so do all committed rows.
So a test finds the state of the last commit, but a file may have bytes of the next write.
"""

import re
from typing import Final

from s3fs_meta.model import Ino
from s3fs_meta.testing.model_fs import ModelFilesystem, Seen
from s3fs_meta.testing.operations import Act, Operation

Tree = dict[bytes, Seen]

_WRITES: Final = frozenset({Act.WRITE, Act.APPEND})
_SHORT_BYTES: Final = 16
_RUNS_MAX: Final = 8
_RUN: Final = re.compile(rb"\0+|[^\0]+")


class History:
    """A sequence of operations, with the state before and after each operation."""

    def __init__(self, start: ModelFilesystem) -> None:
        self.states = [start]
        self.operations: list[Operation] = []
        self.sure = 0  # index of the oldest state that a crash may leave

    @property
    def now(self) -> ModelFilesystem:
        """Return the state after the last operation."""
        return self.states[-1]

    def add(self, operation: Operation, after: ModelFilesystem) -> None:
        """Add an operation and the resulting state to the history."""
        self.operations.append(operation)
        self.states.append(after)

    def note_commit(self) -> None:
        """Record that all added operations are committed."""
        self.sure = len(self.operations)

    def find(self, tree: Tree, next_ino: Ino) -> ModelFilesystem | None:
        """Return the newest state that a crash may leave as *tree*, or None if there is none."""
        for number in range(len(self.operations), self.sure - 1, -1):
            state = self.states[number].crashed()
            if state.next_ino != next_ino:
                continue
            expected = state.tree()
            if number < len(self.operations):
                _allow_bytes(expected, tree, self.operations[number], self.states[number + 1])
            if expected == tree:
                return with_content(state, tree)
        return None


def _allow_bytes(expected: Tree, found: Tree, operation: Operation, after: ModelFilesystem) -> None:
    """Change *expected* to accept bytes of an uncommitted write within the file's earlier size."""
    if operation.act not in _WRITES or operation.ino not in after.nodes:
        return
    new = after.nodes[operation.ino].content
    for path, entry in expected.items():
        present = found.get(path)
        if entry.ino != operation.ino or present is None or entry.content is None:
            continue
        bytes_found = present.content or b""
        allowed = len(bytes_found) == len(entry.content) and all(
            byte in pair
            for byte, pair in zip(bytes_found, zip(entry.content, new, strict=False), strict=False)
        )
        if allowed:
            expected[path] = entry._replace(content=bytes_found)


def with_content(state: ModelFilesystem, tree: Tree) -> ModelFilesystem:
    """Replace the contents of a state's files with the contents in *tree*; return the state."""
    for entry in tree.values():
        if entry.content is not None:
            state.set_content(entry.ino, entry.content)
    return state


def differences(expected: Tree, found: Tree) -> list[str]:
    """Return one line for each difference between two trees."""
    lines = [f"{path!r} is missing" for path in sorted(expected.keys() - found.keys())]
    lines += [f"{path!r} is not expected" for path in sorted(found.keys() - expected.keys())]
    for path in sorted(expected.keys() & found.keys()):
        for field, wanted, present in zip(Seen._fields, expected[path], found[path], strict=True):
            if wanted != present:
                lines.append(f"{path!r}: {field} is {_short(present)}, not {_short(wanted)}")
    return lines


def _short(value: object) -> str:
    """Return a value as short text; long contents as runs of zeros and other bytes."""
    if not isinstance(value, bytes) or len(value) <= _SHORT_BYTES:
        return repr(value)
    runs = [
        f"{match.start()}..{match.end()} {match[0][:4]!r}" for match in _RUN.finditer(bytes(value))
    ]
    return f"{len(value)} bytes [{', '.join(runs[:_RUNS_MAX])}]"
