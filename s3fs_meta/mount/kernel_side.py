"""The kernel, as the session and the control socket of one mount reach it.

Owns: what is done before the mountpoint exists: nothing. Does not know: how the kernel is asked.
The session is made before the filesystem on top of it, and that before the handlers that the kernel
talks to. So the session gets this object, and ``serve`` hands over the handlers' side later.
"""

from typing import NamedTuple

from s3fs_meta.fuse.kernel_cache import KernelCache
from s3fs_meta.fuse.write_back import WriteBack
from s3fs_meta.sync.kernel import Turned


class _Served(NamedTuple):
    """The two ways in which a mount asks its kernel."""

    write_back: WriteBack
    cache: KernelCache


class KernelSide:
    """The kernel of one mount (``sync.kernel.Kernel``)."""

    def __init__(self) -> None:
        self._served: _Served | None = None

    def serve(self, write_back: WriteBack, cache: KernelCache) -> None:
        """Ask the kernel from now on."""
        self._served = _Served(write_back, cache)

    async def collect(self) -> bool:
        """Have the kernel hand over written data; return whether it did."""
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
