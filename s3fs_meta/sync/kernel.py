"""A session's interface to the kernel: writing back dirty pages, and dropping cached replies.

Owns: the interface, and a null implementation for sessions without a mountpoint.
Does not know: FUSE.
"""

from typing import NamedTuple, Protocol

from s3fs_meta.model import Ino


class SwitchChanges(NamedTuple):
    """The names, inodes and file contents that a txg changed."""

    names: set[tuple[Ino, bytes]]
    inodes: set[Ino]
    contents: set[Ino]


class Kernel(Protocol):
    """The kernel of a mountpoint, which has dirty pages and caches replies to requests."""

    async def collect(self) -> object:
        """Make the kernel write back all dirty pages, within a time limit."""
        ...

    async def before_switch(self, changes: SwitchChanges | None) -> None:
        """Drop the cached replies that a txg affects; cache no reply until ``at_switch``.

        Args:
            changes: the changes of the txg; None: drop all cached replies.
        """
        ...

    def at_switch(self) -> None:
        """Allow the kernel to cache replies again: the new txg is visible. Never yields."""
        ...

    async def after_switch(self, changes: SwitchChanges | None) -> None:
        """Drop replies older than the new txg, and file content that the txg changed."""
        ...


class NoKernel:
    """The kernel of a session without a mountpoint; it has no dirty pages and no cache."""

    async def collect(self) -> None:
        """Do nothing, because no dirty pages exist."""

    async def before_switch(self, changes: SwitchChanges | None) -> None:
        """Do nothing, because no replies are cached."""

    def at_switch(self) -> None:
        """Do nothing, because replies are never cached."""

    async def after_switch(self, changes: SwitchChanges | None) -> None:
        """Do nothing, because no file content is cached."""
