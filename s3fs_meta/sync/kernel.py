"""The interface of a session to the kernel: writing back dirty pages, dropping cached answers.

Owns: the interface, and a null implementation for sessions without a mountpoint.
Does not know: FUSE.
"""

from typing import NamedTuple, Protocol

from s3fs_meta.model import Ino


class Turned(NamedTuple):
    """The names, inodes and file contents that a txg changed."""

    names: set[tuple[Ino, bytes]]
    inodes: set[Ino]
    contents: set[Ino]


class Kernel(Protocol):
    """The kernel of a mountpoint, which holds dirty pages and caches answers to requests."""

    async def collect(self) -> object:
        """Make the kernel write back all pages that are dirty now, within a time limit."""
        ...

    async def before_turn(self, turned: Turned | None) -> None:
        """Drop answers that the next txg changes (None: all); cache none until ``at_turn``."""
        ...

    def at_turn(self) -> None:
        """Cache answers again, because the new txg is visible now. Schedule point: never."""
        ...

    async def after_turn(self, turned: Turned | None) -> None:
        """Drop answers given just before the new txg became visible, and changed file content."""
        ...


class NoKernel:
    """The kernel of a session without a mountpoint: it holds and caches nothing."""

    async def collect(self) -> None:
        """Do nothing."""

    async def before_turn(self, turned: Turned | None) -> None:
        """Do nothing."""

    def at_turn(self) -> None:
        """Do nothing."""

    async def after_turn(self, turned: Turned | None) -> None:
        """Do nothing."""
