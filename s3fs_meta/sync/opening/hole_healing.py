"""Refilling holes that fsck made, from the cached blocks of quarantined states.

Owns: the choice of the holes to refill, and the records of lost parts. Does not know: why a state
was quarantined. If the bucket lost content, ``fsck -y`` on one host replaces it with holes. Another
host may have the content in its cache, and its next mount quarantines these blocks. A hole is
refilled on three conditions: an attribute of the file lists the lost part, the file is unchanged
(same size, mtime and ctime), and the cached block has its recorded hash.
Keeps: quarantined state is only read. Content is durable before its rows are committed. The next
mount continues an interrupted run.
Tasks: one task, at a mount for writing, before the kernel can send requests.
Design: docs/design/durability.md, "Damage in the bucket".
"""

import contextlib
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.counted import counted
from s3fs_meta.errors import NoSpaceLeftError, S3fsError
from s3fs_meta.hashed_dir import NumberedDir
from s3fs_meta.limits import LOOP_SLICE_ROWS, LOST_PARTS_MAX, QUARANTINES_SEARCHED_MAX
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.lost_ranges import ATTRIBUTE, LostPart
from s3fs_meta.meta.tables import (
    block_map,
    blocks,
    cached_blocks,
    inodes,
    local_state,
    properties,
    xattrs,
)
from s3fs_meta.model import BlockId, BlockIndex, BlockRow, Ino
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)

_BLOCKS_AT_ONCE: Final = LOOP_SLICE_ROWS


class _Hole(NamedTuple):
    """A hole, and the block at the same offset in a quarantined state."""

    block_index: BlockIndex
    block: BlockRow


class _Made(NamedTuple):
    """A new block for a hole; its file exists, but its rows do not exist yet."""

    block_index: BlockIndex
    block: BlockId
    size_bytes: int


async def heal_holes(volume: Volume) -> list[str]:
    """Put the lost content back into holes that fsck made; return lines for the user.

    Args:
        volume: a volume opened for writing that no other task uses.

    Raises:
        DatabaseError, OSError: the local disk failed.
    """
    states = _quarantined(volume.state_dir)
    if not states:
        return []
    lost = await in_thread(_lost_parts, volume.db)
    notices: list[str] = []
    for path in states if lost else ():
        source = await in_thread(_opened, path, volume.uuid)
        if source is None:
            continue
        healer = _Healer(volume, source, path / volume.state_dir.blocks.name)
        with contextlib.closing(source):
            try:
                await healer.heal(lost)
            except (
                S3fsError
            ) as exc:  # heal no more holes: the disk is full, or the quarantined rows are damaged
                notices.append(f"not all lost parts of files were healed from {path}: {exc}")
        if healer.blocks_healed:
            notices.append(
                f"healed {counted(healer.blocks_healed, 'block')} of"
                f" {counted(len(healer.files_healed), 'file')} that fsck had replaced with holes, from"
                f" cached copies in {path}"
            )
    if notices:
        volume.db.commit_durable()
        await in_thread_or_here(volume.db.sync_wal)
    return notices


def _quarantined(state_dir: StateDir) -> list[Path]:
    """Return the directories of quarantined states, newest first."""
    found = sorted(state_dir.path.glob(state_dir.quarantine("*").name), reverse=True)
    return [path for path in found if (path / state_dir.database.name).exists()][
        :QUARANTINES_SEARCHED_MAX
    ]


def _lost_parts(db: Database) -> list[LostPart]:
    return list(itertools.islice(lost_ranges.iterate(db), LOST_PARTS_MAX))


def _opened(path: Path, uuid: str) -> Database | None:
    """Open the database of a quarantined state; return None if it is unusable. The call blocks."""
    db: Database | None = None
    try:
        db = Database.open(path / "meta.db", Pragmas(), read_only=True)
        if local_state.get(db, "uuid") in {None, uuid}:
            return db
    except S3fsError as exc:
        _log.info("cannot search the quarantined state %s for lost content: %s", path, exc)
    if db is not None:
        db.close()
    return None


class _Healer:
    """Refills holes with the blocks of one quarantined state."""

    def __init__(self, volume: Volume, source: Database, source_blocks: Path) -> None:
        self._db = volume.db
        self._keyring = volume.keyring
        self._files = BlockFiles(volume.state_dir.blocks, volume.state_dir.tmp)
        self._disk = DiskSpace(volume.state_dir.blocks)
        self._block_bytes = int(properties.get(volume.db, "block_bytes"))
        self._source = source
        self._source_blocks = NumberedDir(source_blocks)
        self.blocks_healed = 0
        self.files_healed: set[Ino] = set()

    async def heal(self, lost: Sequence[LostPart]) -> None:
        """Refill the lost parts whose content is in the quarantined state."""
        for part in lost:
            if not self._is_unchanged(part.ino):
                continue
            for holes in self._holes(part):
                await self._heal_some(part.ino, holes)

    def _is_unchanged(self, ino: Ino) -> bool:
        """Return whether a file has the same mode, size, mtime and ctime in both states."""
        now, then = inodes.find(self._db, ino), inodes.find(self._source, ino)
        return (
            now is not None
            and then is not None
            and (now.mode, now.size_bytes, now.mtime_ns, now.ctime_ns)
            == (then.mode, then.size_bytes, then.mtime_ns, then.ctime_ns)
        )

    def _holes(self, part: LostPart) -> Iterator[list[_Hole]]:
        """Yield holes for which the quarantined state has a block, in lists of limited length."""
        first = part.first
        while True:
            with contextlib.closing(
                block_map.blocks_of(self._source, part.ino, first, part.last)
            ) as found:
                some = list(itertools.islice(found, _BLOCKS_AT_ONCE))
            if not some:
                return
            first = BlockIndex(some[-1][0] + 1)
            rows = [(index, blocks.find(self._source, block)) for index, block in some]
            yield [
                _Hole(index, row)
                for index, row in rows
                if row is not None
                and row.hash is not None
                and 0 < row.plain_bytes <= self._block_bytes
                and block_map.find(self._db, part.ino, index) is None
            ]

    async def _heal_some(self, ino: Ino, holes: Sequence[_Hole]) -> None:
        made: list[_Made] = []
        full: NoSpaceLeftError | None = None
        try:
            for index, row in holes:
                data = await in_thread(self._content, row)
                if data is None:
                    continue
                try:
                    self._disk.spend(len(data))
                    block = self._db.counters.take_block()
                    self._files.create(block, 0, data)
                except NoSpaceLeftError as exc:
                    full = exc
                    break
                made.append(_Made(index, block, len(data)))
            if made:
                await in_thread_or_here(self._files.sync, [one.block for one in made])
        except BaseException:
            for one in made:
                self._files.remove(one.block)
            raise
        if made:
            self._commit(ino, made)
        if full is not None:
            raise full

    def _content(self, row: BlockRow) -> bytes | None:
        """Return a quarantined block, or None if its hash does not match. The call blocks."""
        try:
            fd = self._source_blocks.open(f"{row.block:x}", os.O_RDONLY)
        except OSError:
            return None
        with open(fd, "rb") as file:
            try:
                data = file.read(row.plain_bytes)
            except OSError:
                return None
        return data if self._keyring.block_hash(data) == row.hash else None

    def _commit(self, ino: Ino, made: Sequence[_Made]) -> None:
        """Map durable new blocks, shorten the list of the file's lost parts, and commit.

        If this fails, the files stay, because part of the commit may have reached the disk. The
        next mount removes files without a row.
        """
        self._db.commit()  # a failure below must not undo earlier changes
        self._db.begin()
        try:
            self._map(ino, made)
        except BaseException:
            self._db.undo()
            raise
        self._db.commit()
        self.blocks_healed += len(made)
        self.files_healed.add(ino)

    def _map(self, ino: Ino, made: Sequence[_Made]) -> None:
        for index, block, size_bytes in made:
            blocks.fill_hole(self._db, block, ino, index, size_bytes, hole_bytes=0)
        inodes.add_mapped_blocks(self._db, ino, len(made))
        cached_blocks.note_synced(self._db, [(one.block, one.size_bytes) for one in made])
        starts = [one.block_index * self._block_bytes for one in made]
        recorded = lost_ranges.parse(xattrs.find(self._db, ino, ATTRIBUTE) or b"")
        left = lost_ranges.without(
            recorded, [range(start, start + self._block_bytes) for start in starts]
        )
        if left:
            xattrs.set(self._db, ino, ATTRIBUTE, lost_ranges.lines(left))
        else:
            xattrs.remove(self._db, ino, ATTRIBUTE)
