"""Random system calls on the tested filesystem and on ext4: all results must be equal.

Each call is made on the two filesystems by processes of the same user. After each call, this module
compares the results, all names and attributes, and the set of changed times. After some calls it
also compares the content of all files. A case is one seed, and ends at the first difference.
Differences that docs/design/semantics.md lists are not reported: see ``_is_left_out``,
``_is_known_time`` and ``random_calls.shown``.
"""

import contextlib
import os
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from contrib.conformance import programs
from contrib.conformance.cases import Case, Outcome
from contrib.conformance.places import Place
from contrib.conformance.random_calls import (
    RENAME_WHITEOUT,
    SLOTS,
    USERS,
    Call,
    Choice,
    Process,
    shown,
)

SUITE: Final = "ext4"
CALLS: Final = 2000
DISK_BYTES: Final = 256 << 20
_NAMES_MAX: Final = 60  # If there are more names than this, the tree is removed.
_CONTENT_EVERY: Final = 25
_TICK_NS: Final = 20 * 10**6  # The kernel's clock for file times may lag by this duration.
_FAR_NS: Final = 3600 * 10**9
_SHOWN_CALLS: Final = 40
_TEXT_MAX: Final = 60
_SIZE: Final = 4  # Index in Entry.attributes.
_RESTRICTIONS: Final = {"nodev": os.ST_NODEV, "nosuid": os.ST_NOSUID}


class Entry(NamedTuple):
    """A name in a tree, and the attributes of its inode."""

    attributes: tuple[int, ...]
    xattrs: Mapping[str, bytes]
    target: str  # Target of a symbolic link.
    first: str  # The first path under which the same inode was found.
    ino: int
    mtime_ns: int
    ctime_ns: int
    atime_ns: int


Tree = Mapping[str, Entry]


class Side:
    """One filesystem: a directory in it, a process for each user, and its tree after each call."""

    def __init__(self, top: Path) -> None:
        self.top = top
        top.mkdir()
        top.chmod(0o777)
        self.processes = [Process(str(top), user) for user in range(len(USERS))]
        self.tree: Tree = {}
        self.has_flags = False
        self.look()

    def look(self) -> Tree:
        """Read the tree from the filesystem; return the tree as it was after the previous call."""
        before, self.tree = self.tree, dict(_walk(self.top))
        return before

    def contents(self) -> dict[str, bytes]:
        """Return the content of every regular file."""
        return {
            path: (self.top / path).read_bytes()
            for path, entry in self.tree.items()
            if stat.S_ISREG(entry.attributes[0])
        }

    def clear(self) -> None:
        """Remove all names from the tree."""
        self.has_flags = False
        for user in range(len(USERS)):
            for slot in range(SLOTS):
                self.processes[user].call(Call(user, "close", (slot,)))
        for path, entry in self.tree.items():
            if stat.S_ISREG(entry.attributes[0]) or stat.S_ISDIR(entry.attributes[0]):
                self.processes[0].call(Call(0, "chattr", (path or ".", 0)))
        subprocess.run(["find", self.top, "-mindepth", "1", "-delete"], check=True)
        self.top.chmod(0o777)
        os.chown(self.top, 0, 0)
        for name in os.listxattr(self.top):
            os.removexattr(self.top, name)
        self.look()

    def end(self) -> None:
        """End the processes of all users."""
        for process in self.processes:
            process.end()


def _walk(top: Path) -> Iterator[tuple[str, Entry]]:
    firsts: dict[int, str] = {}
    pending = [""]
    while pending:
        path = pending.pop()
        place = os.path.join(top, path) if path else str(top)
        found = os.lstat(place)
        names = os.listxattr(place, follow_symlinks=False)
        yield path, Entry(
            shown(found),
            {name: os.getxattr(place, name, follow_symlinks=False) for name in names},
            os.readlink(place) if stat.S_ISLNK(found.st_mode) else "",
            firsts.setdefault(found.st_ino, path),
            found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_atime_ns,
        )  # fmt: skip
        if stat.S_ISDIR(found.st_mode):
            pending += [f"{path}/{name}".lstrip("/") for name in sorted(os.listdir(place))]


@contextlib.contextmanager
def _loop_device(place: Place) -> Iterator[Path]:
    """Mount a new ext4 on a loop device, with the same restrictions as the tested filesystem."""
    image, mountpoint = place.scratch / "ext4.img", place.scratch / "ext4"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-O", "ea_inode", image], check=True)
    mountpoint.mkdir()
    flags = os.statvfs(place.directory).f_flag
    options = [name for name, flag in _RESTRICTIONS.items() if flags & flag]
    text = ",".join(["loop", *options])
    subprocess.run(["mount", "-o", text, image, mountpoint], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run(["umount", "--lazy", mountpoint], check=False)
        image.unlink()


def run(place: Place, only: str | None, *, seeds: Iterable[int]) -> Iterator[Case]:
    """Run one case for each seed."""
    programs.find(SUITE)
    with _loop_device(place) as disk:
        for seed in seeds:
            name = f"seed{seed}"
            if only is None or only in name:
                yield _run(place.directory / name, disk / name, name, seed)


def _run(ours: Path, theirs: Path, name: str, seed: int) -> Case:
    start = time.monotonic()
    problem = compare(theirs, ours, seed)
    programs.remove_tree(ours)
    programs.remove_tree(theirs)
    outcome = Outcome.FAILED if problem else Outcome.PASSED
    return Case(SUITE, name, outcome, problem, time.monotonic() - start)


def compare(theirs: Path, ours: Path, seed: int, calls: int = CALLS) -> str:
    """Make random calls in two new directories; describe the first difference, or return "".

    Raises: TimeoutError: a call did not return.
    """
    with contextlib.ExitStack() as stack:
        sides = Side(theirs), Side(ours)
        for side in sides:
            stack.callback(side.end)
        return _compare(*sides, seed, calls)


def _compare(theirs: Side, ours: Side, seed: int, calls: int) -> str:
    choice, log = Choice(seed), list[str]()
    for number in range(calls):
        choice.paths = [path for path in theirs.tree if path]
        call = choice.next()
        if _is_left_out(call, theirs):
            continue
        start_ns = time.time_ns()
        results = [side.processes[call.user].call(call) for side in (theirs, ours)]
        choice.note(call, results[0])
        log.append(f"{_short(call)} = {_short(results[0])}")
        if call.name == "chattr" and results[0] is None and call.arguments[1]:
            theirs.has_flags = True
        before = [side.look() for side in (theirs, ours)]
        found = _difference(call, results, (theirs, ours), before, start_ns)
        if not found and number % _CONTENT_EVERY == 0:
            found = _different_content(theirs, ours)
        if found:
            return "\n".join([f"call {number}: {found}", *log[-_SHOWN_CALLS:]])
        if len(theirs.tree) > _NAMES_MAX:
            theirs.clear()
            ours.clear()
            choice.open_slots = [set() for _ in USERS]
            log.append("(removed all names)")
    return ""


def _short(value: object) -> str:
    if isinstance(value, Call):
        arguments = ", ".join(_short(each) for each in value.arguments)
        return f"user {value.user}: {value.name}({arguments})"
    text = repr(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}... ({len(text)})"


def _is_left_out(call: Call, theirs: Side) -> bool:
    """Return whether to skip a call because semantics.md lists its effects as different.

    With FUSE, a change of a file's flags does not change the ctime, and descriptors that are open
    at the change remain writable.
    """
    if call.name != "chattr":
        return False
    entry = theirs.tree.get(call.arguments[0])
    return entry is None or not stat.S_ISDIR(entry.attributes[0])


def _difference(
    call: Call,
    results: Sequence[object],
    sides: tuple[Side, Side],
    before: Sequence[Tree],
    start_ns: int,
) -> str:
    theirs, ours = sides
    # The kernel does not know the flags of FUSE inodes, so it may return another error than EPERM.
    is_refused = results[0] is False or results[0] == "E:EPERM"
    if results[0] != results[1] and not (is_refused and theirs.has_flags):
        return f"result: ext4 {_short(results[0])}, here {_short(results[1])}"
    if theirs.tree.keys() != ours.tree.keys():
        return f"names: {theirs.tree.keys() ^ ours.tree.keys()}"
    slots = Call(0, "slots", ())
    for user in range(len(USERS)):
        one, two = (side.processes[user].call(slots) for side in sides)
        if one != two:
            return f"open files of user {user}: ext4 {one}, here {two}"
    for path, entry in theirs.tree.items():
        own = ours.tree[path]
        if entry[:4] != own[:4]:
            return f"{path!r}: ext4 {entry[:4]}, here {own[:4]}"
    if call.name == "rename" and call.arguments[4] & RENAME_WHITEOUT and results[0] is not None:
        return ""  # ext4 creates and removes the whiteout before it fails, which changes times.
    return _different_times(call, sides, before, start_ns)


def _different_times(
    call: Call, sides: tuple[Side, Side], before: Sequence[Tree], start_ns: int
) -> str:
    known = [{entry.ino: entry for entry in tree.values()} for tree in before]
    for path, entry in sides[0].tree.items():
        own = sides[1].tree[path]
        ctime_changed = [
            _changed(old.get(new.ino), "ctime_ns", new.ctime_ns, start_ns)
            for old, new in zip(known, (entry, own), strict=True)
        ]
        for kind in ("mtime_ns", "ctime_ns", "atime_ns"):
            if kind == "atime_ns" and (
                call.name != "utime" or not all(ctime_changed) or entry.attributes[1] > 1
            ):
                continue
            values = getattr(entry, kind), getattr(own, kind)
            if any(abs(value - start_ns) > _FAR_NS for value in values):
                if values[0] != values[1]:
                    return f"{kind} of {path!r}: ext4 {values[0]}, here {values[1]}"
                continue
            if kind == "atime_ns" or _is_known_time(call, kind, known[0].get(entry.ino), entry):
                continue
            states = [
                _changed(old.get(new.ino), kind, value, start_ns)
                for old, new, value in zip(known, (entry, own), values, strict=True)
            ]
            if None not in states and states[0] != states[1]:
                return f"{kind} of {path!r} changed: ext4 {states[0]}, here {states[1]}"
    return ""


def _is_known_time(call: Call, kind: str, before: Entry | None, after: Entry) -> bool:
    """Return whether semantics.md says that a call changes a time on one filesystem only."""
    if call.name == "truncate":
        return before is not None and before.attributes[_SIZE] == after.attributes[_SIZE]
    return kind == "ctime_ns" and call.name in ("setxattr", "fsetxattr", "removexattr", "chattr")


def _changed(before: Entry | None, kind: str, value: int, start_ns: int) -> bool | None:
    """Return whether a call changed a time; return None if the clock is too coarse to decide."""
    if before is None or getattr(before, kind) != value:
        return True
    return None if value > start_ns - _TICK_NS else False


def _different_content(theirs: Side, ours: Side) -> str:
    one, two = theirs.contents(), ours.contents()
    wrong = [path for path in one if one[path] != two[path]]
    return f"content of {wrong}" if wrong else ""
