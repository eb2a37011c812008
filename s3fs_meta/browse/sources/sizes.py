"""The cached sizes of all folders at recently viewed points in time.

Owns: the cache. Does not know: how sizes are added up (``meta.trees.folder_sizes``).
Keeps: only one computation runs at a time, in slices; other requests are answered between two
slices.
"""

from collections import OrderedDict

import trio

from s3fs_meta.browse.limits import BROWSE_SIZES_MAX
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.trees.folder_sizes import FolderSizes
from s3fs_meta.model import Txg


class Sizes:
    """The cached folder sizes at up to BROWSE_SIZES_MAX points in time."""

    def __init__(self) -> None:
        self._known: OrderedDict[Txg, FolderSizes] = OrderedDict()
        self._lock = trio.Lock()

    async def of(self, point: OpenPoint) -> FolderSizes:
        """Return the folder sizes at a point in time.

        Raises the same errors as ``FolderSizes.read``.
        """
        txg = point.volume.link.txg
        async with self._lock:
            if txg not in self._known:
                found = FolderSizes()
                for _ in found.read(point.db):
                    await trio.lowlevel.checkpoint()
                self._known[txg] = found
                if len(self._known) > BROWSE_SIZES_MAX:
                    self._known.popitem(last=False)
            self._known.move_to_end(txg)
            return self._known[txg]
