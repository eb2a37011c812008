"""Requests to the kernel from a mount's session and control socket.

Owns: ignoring requests before the mountpoint exists. Does not know: how requests are sent.
The session is created before the FUSE handlers, so it uses a ``KernelSide``, which forwards
requests to the kernel once ``serve`` has been called.
"""

from s3fs_meta.fuse.collection.write_back import WriteBack
from s3fs_meta.fuse.kernel_cache import KernelCache
from s3fs_meta.sync.kernel import NoKernel, SwitchChanges


class KernelSide:
    """Sends the requests of one mount to the kernel (``sync.kernel.Kernel``)."""

    def __init__(self) -> None:
        self._write_back: WriteBack | None = None
        self._cache: KernelCache | NoKernel = NoKernel()

    def serve(self, write_back: WriteBack, cache: KernelCache) -> None:
        """Start to forward the mount's requests to the kernel."""
        self._write_back, self._cache = write_back, cache

    async def collect(self) -> bool:
        """Make the kernel write back dirty pages; return whether all were written back."""
        return self._write_back is None or await self._write_back.collect()

    def why_uncollected(self, age_s: float) -> str:
        """Return why the kernel may have data older than *age_s*, or "" if it has none."""
        return "" if self._write_back is None else self._write_back.why_uncollected(age_s)

    async def before_switch(self, changes: SwitchChanges | None) -> None:
        """Make the kernel drop the cached replies that a txg affects."""
        await self._cache.before_switch(changes)

    def at_switch(self) -> None:
        """Let the kernel cache replies again. Never yields to other tasks."""
        self._cache.at_switch()

    async def after_switch(self, changes: SwitchChanges | None) -> None:
        """Make the kernel drop changed file content, and cached replies older than the txg."""
        await self._cache.after_switch(changes)
