"""Creating packs from sealed blocks, in a thread; the only inputs are arguments and block files.

Owns: hashing, finding zero blocks, filling packs. Does not know: rows, the store, the event loop.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import LostBlockError
from s3fs_meta.limits import PACK_BYTES_TARGET
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino


class Sealed(NamedTuple):
    """One sealed block, whose content is in a block file."""

    block: BlockId
    ino: Ino
    block_index: BlockIndex
    plain_bytes: int


class Hashed(NamedTuple):
    """A sealed block with the hash of its content."""

    sealed: Sealed
    hash: bytes
    is_zero: bool


class Packer:
    """Reads block files and creates packs; any thread may call it, because it has no state."""

    def __init__(
        self,
        files: BlockFiles,
        keyring: Keyring,
        compression: str,
        epoch: Callable[[], Epoch],
        *,
        pack_bytes: int = PACK_BYTES_TARGET,
    ) -> None:
        self._files = files
        self._keyring = keyring
        self._compression = compression
        self._pack_bytes = pack_bytes
        self._epoch = epoch  # returns the epoch, which a follower has only after its promotion

    def hash_all(self, sealed: Sequence[Sealed]) -> tuple[list[Hashed], list[LostBlockError]]:
        """Hash the content of each block, in order.

        Returns:
            The blocks that could be read, and an error for each block with a missing or short file.
        """
        hashed: list[Hashed] = []
        lost: list[LostBlockError] = []
        for one in sealed:
            try:
                data = self._files.read(one.block, 0, one.plain_bytes)
            except LostBlockError as exc:
                lost.append(exc)
                continue
            is_zero = not data or (data[0] == 0 and not data.strip(b"\0"))
            hashed.append(Hashed(one, self._keyring.block_hash(data), is_zero))
        return hashed, lost

    def fill_next(self, hashed: Sequence[Hashed], begin: int) -> tuple[pack_codec.Pack, int]:
        """Put blocks into one pack, in order, until it is full.

        Only one pack is made at a time, because the complete pack is in memory.

        Args:
            hashed: the blocks of a batch.
            begin: the index of the first block of this pack.

        Returns:
            The pack, and the index of the first block of the next pack.

        Raises:
            LostBlockError: a block file is missing or short.
        """
        key = pack_codec.new_key(self._epoch(), secrets.token_bytes(16))
        writer = pack_codec.PackWriter(
            key, self._keyring, self._compression, bytes_target=self._pack_bytes
        )
        end = begin
        while end < len(hashed) and not writer.full:
            sealed = hashed[end].sealed
            data = self._files.read(sealed.block, 0, sealed.plain_bytes)
            writer.add(
                sealed.block, sealed.ino, sealed.block_index, hashed[end].hash, memoryview(data)
            )
            end += 1
        return writer.finish(), end
