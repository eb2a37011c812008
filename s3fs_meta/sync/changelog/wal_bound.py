"""A bound on the growth of the WAL during an upload, while an open snapshot prevents its reuse.

Owns: stopping the upload if the WAL grows too much. Does not know: what is uploaded, txgs.
Tasks: one upload at a time; during an upload the event loop calls ``check`` for each recorded
group.
"""

from collections.abc import Awaitable, Callable

import trio

from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.limits import MIB
from s3fs_meta.meta.db.database import Database


class WalBound:
    """Limits the growth of one database's WAL during uploads."""

    def __init__(self, db: Database, growth_max: int) -> None:
        """Create the bound; *growth_max* is the maximum growth in bytes during one upload."""
        self._db = db
        self._growth_max = growth_max
        self.scope: trio.CancelScope | None = None  # None if no upload is running
        self._wal_bytes_max = 0  # size of the WAL at which the upload is stopped

    def check(self) -> None:
        """Stop the upload if the WAL has grown too much. Never yields to other tasks."""
        if self.scope is not None and self._db.wal_bytes > self._wal_bytes_max:
            self.scope.cancel()

    async def completes(self, upload: Callable[[], Awaitable[None]]) -> bool:
        """Run an upload; return False if it was stopped. Uploaded blocks stay in the store."""
        with trio.CancelScope() as scope:
            self.scope, self._wal_bytes_max = scope, self._db.wal_bytes + self._growth_max
            try:
                await upload()
            finally:
                self.scope = None
        return not scope.cancelled_caught

    async def require(self, upload: Callable[[], Awaitable[None]]) -> None:
        """Run an upload.

        Raises:
            StoreUnavailableError: the upload was stopped, because the WAL grew too much.
        """
        began_s = trio.current_time()
        if not await self.completes(upload):
            raise self.exceeded(began_s, 1)

    def exceeded(self, began_s: float, attempts: int) -> StoreUnavailableError:
        """Return the error for a caller whose uploads since *began_s* were all stopped."""
        why = f"the WAL grew by {self._growth_max // MIB} MiB while blocks were uploaded"
        return StoreUnavailableError("image", attempts, trio.current_time() - began_s, why)
