"""The interface of a mount's session and control socket to the kernel.

Owns: doing nothing before the mountpoint exists. Does not know: how requests reach the kernel.
The session is created before the FUSE handlers. So it gets this object, which forwards to the
kernel once ``serve`` has been called.
"""

from typing import NamedTuple

from s3fs_meta.fuse.kernel_cache import KernelCache
from s3fs_meta.fuse.write_back import WriteBack
from s3fs_meta.sync.kernel import Turned


class _Served(NamedTuple):
    """The two kinds of requests of a mount to its kernel."""

    write_back: WriteBack
    cache: KernelCache


class KernelSide:
    """The kernel of one mount (``sync.kernel.Kernel``)."""

    def __init__(self) -> None:
        self._served: _Served | None = None

    def serve(self, write_back: WriteBack, cache: KernelCache) -> None:
        """Forward requests to the kernel from now on."""
        self._served = _Served(write_back, cache)

    async def collect(self) -> bool:
        """Make the kernel write back dirty pages; return whether it did."""
        return self._served is None or await self._served.write_back.collect()

    async def before_turn(self, turned: Turned | None) -> None:
        """Drop cached answers; see ``KernelCache``."""
        if self._served is not None:
            await self._served.cache.before_turn(turned)

    def at_turn(self) -> None:
        """Cache answers again; see ``KernelCache``. Schedule point: never."""
        if self._served is not None:
            self._served.cache.at_turn()

    async def after_turn(self, turned: Turned | None) -> None:
        """Drop late answers, and content; see ``KernelCache``."""
        if self._served is not None:
            await self._served.cache.after_turn(turned)
