"""What may be there after a crash: a prefix of the operations.

Owns: the states that a filesystem went through since the last commit, and which of them a tree
that was found may be. Does not know: how a crash is made.
A kill keeps every byte that was written to a block file, and of the rows those of committed
groups. So what is found is the state at the last commit; only a write that came right after it
may show some of its bytes already.
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
    """Operations and the states between them; ``states[0]`` is before the first."""

    def __init__(self, start: ModelFilesystem) -> None:
        self.states = [start]
        self.operations: list[Operation] = []
        self.sure = 0  # nothing older than this state may be found

    @property
    def now(self) -> ModelFilesystem:
        """Return the present state."""
        return self.states[-1]

    def add(self, operation: Operation, after: ModelFilesystem) -> None:
        """Note one operation that was done."""
        self.operations.append(operation)
        self.states.append(after)

    def note_commit(self) -> None:
        """Note that all operations that were added are committed."""
        self.sure = len(self.operations)

    def find(self, tree: Tree, next_ino: Ino) -> ModelFilesystem | None:
        """Return the state that a tree is, the newest if there are several; None without one."""
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
    """Accept bytes of one uncommitted write, within the size that the file had before it."""
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
    """Return a state with the contents that were found."""
    for entry in tree.values():
        if entry.content is not None:
            state.set_content(entry.ino, entry.content)
    return state


def differences(expected: Tree, found: Tree) -> list[str]:
    """Return one line for each path that is not as expected."""
    lines = [f"{path!r} is missing" for path in sorted(expected.keys() - found.keys())]
    lines += [f"{path!r} is too much" for path in sorted(found.keys() - expected.keys())]
    for path in sorted(expected.keys() & found.keys()):
        for field, wanted, present in zip(Seen._fields, expected[path], found[path], strict=True):
            if wanted != present:
                lines.append(f"{path!r}: {field} is {_short(present)}, not {_short(wanted)}")
    return lines


def _short(value: object) -> str:
    """Return a value as it fits on a line; of long contents only where zeros are."""
    if not isinstance(value, bytes) or len(value) <= _SHORT_BYTES:
        return repr(value)
    runs = [
        f"{match.start()}..{match.end()} {match[0][:4]!r}" for match in _RUN.finditer(bytes(value))
    ]
    return f"{len(value)} bytes [{', '.join(runs[:_RUNS_MAX])}]"
