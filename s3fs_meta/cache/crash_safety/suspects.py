"""Cached blocks that a power cut may have torn, until they are verified by their hash.

Owns: the set of suspect blocks, and their verification. Does not know: why a block is suspect.
``block_cache`` checks the set before it uses a block.
Tasks: one background task verifies all; any reader verifies the block that it needs first.
"""

import logging
from collections.abc import Callable

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import BadRowError, DamagedDatabaseError, LostBlockError, ShortageError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, cached_blocks
from s3fs_meta.meta.tables.block_map import Located, of_row
from s3fs_meta.model import BlockId, BlockState

_log = logging.getLogger(__name__)


class Suspects:
    """The suspect blocks of one cache."""

    def __init__(
        self,
        db: Database,
        files: BlockFiles,
        keyring: Keyring,
        forget: Callable[[BlockId], None],
    ) -> None:
        """Start with no suspect blocks.

        Args:
            forget: removes the row and the file of a cached block, inside a commit group.
        """
        self._db = db
        self._files = files
        self._keyring = keyring
        self._forget = forget
        # Readers use this set directly, because a method call for each read would be slow.
        self.blocks: set[BlockId] = set()
        self.are_marked = False  # True after ``mark_all``, even if it found no block to mark

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def mark_all(self) -> None:
        """Mark all uploaded and clean blocks as suspect, to be verified before their next use."""
        self.are_marked = True
        self.blocks = {
            block
            for block, state, _size in cached_blocks.rows_with_size(self._db)
            if state in {BlockState.UPLOADED, BlockState.CLEAN}
        }

    def discard(self, block: BlockId) -> None:
        """Remove a block from the suspect blocks."""
        self.blocks.discard(block)

    async def verify(self, located: Located) -> bool:
        """Verify a suspect cached block by its hash; remove it if its file is torn or missing.

        A torn block that is sealed stays suspect until a download has replaced its file, because
        the uploader needs its row. A block with a short or unreadable file also stays suspect if
        its location in the bucket is marked as damaged. The disk may be able to read it later.

        Returns:
            True if the block is valid, or if another task has verified or removed it in the
            meantime. The caller then checks again whether the block is cached.

        Raises:
            ShortageError: the file cannot be read now; the block stays suspect.
        """
        is_intact = await in_thread(self._is_intact, located)
        if located.block not in self.blocks:
            return True
        held = cached_blocks.get(self._db, located.block)
        if held is not None and (
            (held.state is BlockState.SEALED and not is_intact)
            or (is_intact is None and self._is_damaged(located.block))
        ):
            return False
        self.blocks.discard(located.block)
        if not is_intact and held is not None:
            self._db.begin_local()
            self._forget(located.block)
        return bool(is_intact)

    def _is_damaged(self, block: BlockId) -> bool:
        row = blocks.find(self._db, block)
        return row is not None and blocks.is_damaged(self._db, row)

    def _is_intact(self, located: Located) -> bool | None:
        """Return whether the file of a cached block matches the block's hash. Runs in a thread.

        Return None if the file is short or unreadable.
        """
        try:
            data = self._files.read(located.block, 0, located.plain_bytes)
        except LostBlockError as exc:
            return False if isinstance(exc.__cause__, FileNotFoundError) else None
        return self._keyring.block_hash(data) == located.hash

    async def verify_all(self) -> None:
        """Verify all suspect cached blocks, one after another.

        After each block the task sleeps for as long as the verification took, so that readers get
        half of the disk's time.
        """
        for block in sorted(self.blocks):
            try:
                row = blocks.find(self._db, block) if block in self.blocks else None
            except (BadRowError, DamagedDatabaseError) as exc:
                _log.error("cannot verify a cached block, which stays unverified: %s", exc)
                continue
            if row is None:
                self.blocks.discard(block)
                continue
            began_s = trio.current_time()
            try:
                await self.verify(of_row(row))
            except ShortageError as exc:
                _log.info("cannot verify a cached block now; its next reader verifies it: %s", exc)
            await trio.sleep(trio.current_time() - began_s)
