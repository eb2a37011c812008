"""Simulated power cuts: every state of a disk that the rules of POSIX and SQLite allow.

Owns: the rules, choosing states, writing a state to a directory. Does not know: the correct states
after recovery.

    - Changes that were synced before the cut are on the disk.
    - An unsynced name is on the disk or not, independently of other names; a rename is one step.
    - Of an unsynced write to the database or its journal, all, some or none of the 512-byte sectors
      are on the disk.
    - An unsynced 4 KiB page of a block file has any state that it had since the last sync. Pages
      are independent of each other. If a page overwrites old bytes, its sectors are independent too.
    - An unsynced size of a block file has any value that it had since the last sync.
    - A write before a failed sync of its file is not on the disk, even if later syncs succeed.

The rules for block files allow fewer states than the rule for the database: the kernel writes
complete pages, and no known filesystem shows parts of a page that was never written. SQLite does
not rely on complete pages. An unwritten page within the size is a hole. Sources: fsync(2);
https://www.sqlite.org/atomiccommit.html, "Hardware Assumptions"; Pillai et al., "All File Systems
Are Not Created Equal", OSDI 2014.
"""

import os
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from typing_extensions import override

from s3fs_meta.testing.recorded_disk import (
    Entered,
    Event,
    FileId,
    Left,
    Lost,
    Moved,
    Resized,
    SyncedAll,
    SyncedDirectory,
    SyncedFile,
    Wrote,
    apply_to_names,
)

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
_HALF: Final = 0.5
_CHANGES_MAX: Final = 10_000  # maximum number of unsynced changes before a cut
_TORN: Final = 0.3  # probability that a write is torn, in a state with torn writes

_Data = Wrote | Resized


class FileContent:
    """The content of a file on a disk: pages, and holes where no page was written."""

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.size_bytes = 0

    def apply(self, event: _Data) -> None:
        """Apply a write or a change of size to the content of a file."""
        if isinstance(event, Wrote):
            for piece in pieces(event):
                self.put(piece)
            self.size_bytes = max(self.size_bytes, event.offset + len(event.data))
        else:
            for page in list(self.pages):
                self.cut_page(page, event.size_bytes)
            self.size_bytes = event.size_bytes

    def put(self, piece: "PageWrite") -> None:
        """Write bytes into one page of the file content."""
        page = self.pages.setdefault(piece.page, bytearray(PAGE_BYTES))
        page[piece.start : piece.start + len(piece.data)] = piece.data

    def cut_page(self, page: int, size_bytes: int) -> None:
        """Zero the part of a page after the file size; drop a page that begins after the size."""
        keep = size_bytes - page * PAGE_BYTES
        if keep <= 0:
            self.pages.pop(page, None)
        elif keep < PAGE_BYTES and page in self.pages:
            self.pages[page][keep:] = bytes(PAGE_BYTES - keep)

    def write_to(self, path: Path) -> None:
        """Write the content to a real file, including the holes."""
        with path.open("wb") as file:
            for page, data in sorted(self.pages.items()):
                file.seek(page * PAGE_BYTES)
                file.write(data)
            file.truncate(self.size_bytes)


class PageWrite(NamedTuple):
    """The part of a write that lies within one page of a file."""

    page: int
    start: int
    data: bytes


def pieces(event: Wrote) -> Iterator[PageWrite]:
    """Yield the parts of a write to a file, one part for each page."""
    done = 0
    while done < len(event.data):
        page, start = divmod(event.offset + done, PAGE_BYTES)
        part = event.data[done : done + PAGE_BYTES - start]
        yield PageWrite(page, start, part)
        done += len(part)


class State(NamedTuple):
    """One possible state of a directory after a power cut."""

    names: dict[str, FileId | None]
    files: dict[FileId, FileContent]

    def fingerprint(self) -> int:
        """Return a hash of the directory's state, so that a test can recognise equal states."""
        contents = {
            file: (
                content.size_bytes,
                *((page, bytes(data)) for page, data in sorted(content.pages.items())),
            )
            for file, content in self.files.items()
        }
        places = sorted(self.names.items())
        return hash(
            tuple((path, None if file is None else contents.get(file, ())) for path, file in places)
        )

    def write_to(self, root: Path) -> None:
        """Write the state below *root*; skip names whose parent directory is missing."""
        for path, file in sorted(self.names.items(), key=lambda item: item[0].count("/")):
            place = root / path
            if not place.parent.is_dir():
                continue
            if file is None:
                place.mkdir(exist_ok=True)
            else:
                self.files.get(file, FileContent()).write_to(place)


class PowerCut:
    """The possible states of a directory if power is cut after some recorded events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._names: dict[str, FileId | None] = {}
        self._files: defaultdict[FileId, FileContent] = defaultdict(FileContent)
        self._loose_names: list[Event] = []
        self._loose_data: defaultdict[FileId, list[_Data]] = defaultdict(list)
        self._block_files: set[FileId] = set()
        self._settle()

    def _settle(self) -> None:
        """Separate the recorded changes into synced and unsynced changes."""
        files, directories, everything = self._covered()
        lost = self._lost()
        for number, event in enumerate(self._events):
            if number in lost:
                continue
            if isinstance(event, Wrote | Resized):
                if number < max(files.get(event.file, 0), everything):
                    self._files[event.file].apply(event)
                else:
                    self._loose_data[event.file].append(event)
            elif isinstance(event, Entered | Left | Moved):
                places = {event.path, event.new_path} if isinstance(event, Moved) else {event.path}
                covered = max(directories.get(os.path.dirname(place), 0) for place in places)
                if number < max(covered, everything):
                    apply_to_names(self._names, event)
                else:
                    self._loose_names.append(event)
                self._note_kind(event)

    def _note_kind(self, event: Event) -> None:
        if isinstance(event, Entered | Moved) and event.file is not None:
            place = event.new_path if isinstance(event, Moved) else event.path
            if "/blocks/" in f"/{place}" or "/tmp/fetch-" in f"/{place}":  # noqa: S108
                self._block_files.add(event.file)

    def _covered(self) -> tuple[dict[FileId, int], dict[str, int], int]:
        files: dict[FileId, int] = {}
        directories: dict[str, int] = {}
        everything = 0
        for event in self._events:
            if isinstance(event, SyncedFile):
                files[event.file] = max(files.get(event.file, 0), event.covers)
            elif isinstance(event, SyncedDirectory):
                directories[event.path] = max(directories.get(event.path, 0), event.covers)
            elif isinstance(event, SyncedAll):
                everything = max(everything, event.covers)
        return files, directories, everything

    def _lost(self) -> set[int]:
        """Return the event numbers of the writes that a failed sync has lost."""
        lost: set[int] = set()
        unsynced: defaultdict[FileId, list[int]] = defaultdict(list)
        for number, event in enumerate(self._events):
            if isinstance(event, Wrote):
                unsynced[event.file].append(number)
            elif isinstance(event, SyncedFile | Lost):
                covers = event.covers if isinstance(event, SyncedFile) else event.before
                left = [one for one in unsynced[event.file] if one >= covers]
                if isinstance(event, Lost):
                    lost.update(set(unsynced[event.file]).difference(left))
                unsynced[event.file] = left
            elif isinstance(event, SyncedAll):
                for file, numbers in unsynced.items():
                    unsynced[file] = [one for one in numbers if one >= event.covers]
        return lost

    @property
    def loose(self) -> int:
        """Return the number of unsynced changes, as ``Exactly`` counts them."""
        counts = [Exactly(0), Exactly((1 << _CHANGES_MAX) - 1)]
        for dice in counts:
            self.choose(dice)
        return max(dice.asked for dice in counts)

    # --- choose the state after a power cut ------------------------------------------------------

    def choose(self, dice: "Dice") -> State:
        """Return the state after the power cut that *dice* chooses."""
        names = dict(self._names)
        for event in self._loose_names:
            if dice.keeps():
                apply_to_names(names, event)
        files = {file: self._choose_content(file, dice) for file in self._all_files(names)}
        return State(names, files)

    def _all_files(self, names: dict[str, FileId | None]) -> list[FileId]:
        return sorted({file for file in names.values() if file is not None})

    def _choose_content(self, file: FileId, dice: "Dice") -> FileContent:
        content = FileContent()
        settled = self._files.get(file)
        if settled is not None:
            content.pages = {page: bytearray(data) for page, data in settled.pages.items()}
            content.size_bytes = settled.size_bytes
        loose = self._loose_data.get(file, [])
        if file in self._block_files:
            _choose_pages(content, loose, dice)
        else:
            _choose_writes(content, loose, dice)
        return content


class Dice:
    """Chooses a state at random, reproducibly from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        # Most bugs appear if almost all changes are on the disk, or almost none.
        self._bias = self._random.choice((0.0, 0.03, 0.5, 0.97, 1.0))
        self._tears = self._random.random() < _HALF

    def keeps(self) -> bool:
        """Return whether an unsynced change is on the disk."""
        return self._random.random() < self._bias

    def page(self, count: int) -> int:
        """Return how many of the *count* successive changes to a page are on the disk."""
        if self.keeps():
            return count
        return self._random.randint(0, count) if self._random.random() < _HALF else 0

    def size(self, count: int) -> int:
        """Return how many of the *count* successive changes to a file's size are on the disk."""
        return self.page(count)

    def sectors(self, piece: PageWrite) -> list[PageWrite]:
        """Return the sectors of a piece that are on the disk: none, some or all."""
        if self._tears and self._random.random() < _TORN:
            return [part for part in _sectors(piece) if self._random.random() < _HALF]
        return [piece] if self.keeps() else []

    def parts(self, event: Wrote) -> list[PageWrite]:
        """Return the parts of a write by SQLite that are on the disk."""
        return [part for piece in pieces(event) for part in self.sectors(piece)]

    def torn(self, piece: PageWrite) -> list[PageWrite]:
        """Return the sectors on the disk after a torn write into an old page."""
        return [part for part in _sectors(piece) if self.keeps()]


class Exactly(Dice):
    """Chooses a state by the bits of a number: one bit for each change, without torn writes."""

    def __init__(self, bits: int) -> None:
        super().__init__(0)
        self._bits = bits
        self.asked = 0  # number of random bits that callers used

    @override
    def keeps(self) -> bool:
        self.asked += 1
        self._bits, bit = divmod(self._bits, 2)
        return bool(bit)

    @override
    def page(self, count: int) -> int:
        return count if self.keeps() else 0

    @override
    def parts(self, event: Wrote) -> list[PageWrite]:
        return list(pieces(event)) if self.keeps() else []

    @override
    def torn(self, piece: PageWrite) -> list[PageWrite]:
        return []


def _sectors(piece: PageWrite) -> Iterator[PageWrite]:
    start = piece.start
    while start < piece.start + len(piece.data):
        stop = (start // SECTOR_BYTES + 1) * SECTOR_BYTES
        yield PageWrite(
            piece.page, start, piece.data[start - piece.start : max(stop - piece.start, 0)]
        )
        start = stop


def _choose_writes(content: FileContent, loose: list[_Data], dice: Dice) -> None:
    """Apply writes to the database or its journal, each independently."""
    for event in loose:
        if isinstance(event, Resized):
            if dice.keeps():
                content.apply(event)
            continue
        for part in dice.parts(event):
            content.put(part)
            end = part.page * PAGE_BYTES + part.start + len(part.data)
            content.size_bytes = max(content.size_bytes, end)


def _choose_pages(content: FileContent, loose: list[_Data], dice: Dice) -> None:
    """Apply writes to a block file, up to different points in time for each page and the size."""
    sizes = [content.size_bytes]
    changes: defaultdict[int, list[PageWrite | int]] = defaultdict(list)
    for event in loose:
        if isinstance(event, Wrote):
            sizes.append(max(sizes[-1], event.offset + len(event.data)))
            for piece in pieces(event):
                changes[piece.page].append(piece)
        else:
            sizes.append(event.size_bytes)
            for page in content.pages.keys() | changes.keys():
                changes[page].append(event.size_bytes)
    for page, in_order in sorted(changes.items()):
        kept = dice.page(len(in_order))
        for change in in_order[:kept]:
            if isinstance(change, int):
                content.cut_page(page, change)
            else:
                content.put(change)
        if page in content.pages and kept < len(in_order):
            _tear(content, in_order[kept], dice)
    content.size_bytes = sizes[dice.size(len(sizes) - 1)]
    for page in list(content.pages):
        content.cut_page(page, content.size_bytes)


def _tear(content: FileContent, change: PageWrite | int, dice: Dice) -> None:
    """Apply a part of the next change to a page that is on the disk."""
    if not isinstance(change, int):
        for part in dice.torn(change):
            content.put(part)
