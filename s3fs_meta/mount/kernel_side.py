"""Requests to the kernel from a mount's session and control socket.

Owns: ignoring requests before the mountpoint exists. Does not know: how requests are sent.
The session is created before the FUSE handlers, so it uses a ``KernelSide``, which forwards
requests to the kernel once ``serve`` has been called.
"""

from typing import NamedTuple

from s3fs_meta.fuse.collection.write_back import WriteBack
from s3fs_meta.fuse.kernel_cache import KernelCache
from s3fs_meta.sync.kernel import SwitchChanges


class _Served(NamedTuple):
    """The objects that send a mount's requests to the kernel."""

    write_back: WriteBack
    cache: KernelCache


class KernelSide:
    """Sends the requests of one mount to the kernel (``sync.kernel.Kernel``)."""

    def __init__(self) -> None:
        self._served: _Served | None = None

    def serve(self, write_back: WriteBack, cache: KernelCache) -> None:
        """Start to forward the mount's requests to the kernel."""
        self._served = _Served(write_back, cache)

    async def collect(self) -> bool:
        """Make the kernel write back dirty pages; return whether all were written back."""
        return self._served is None or await self._served.write_back.collect()

    def why_uncollected(self, age_s: float) -> str:
        """Return why the kernel may have data older than *age_s*, or "" if it has none."""
        return "" if self._served is None else self._served.write_back.why_uncollected(age_s)

    async def before_switch(self, changes: SwitchChanges | None) -> None:
        """Make the kernel drop the cached replies that a txg affects."""
        if self._served is not None:
            await self._served.cache.before_switch(changes)

    def at_switch(self) -> None:
        """Let the kernel cache replies again. Never yields to other tasks."""
        if self._served is not None:
            self._served.cache.at_switch()

    async def after_switch(self, changes: SwitchChanges | None) -> None:
        """Make the kernel drop changed file content, and cached replies older than the txg."""
        if self._served is not None:
            await self._served.cache.after_switch(changes)
