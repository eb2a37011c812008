"""A session's interface to the kernel: write back dirty pages, drop cached answers.

Owns: the interface, and a null implementation for sessions without a mountpoint.
Does not know: FUSE.
"""

from typing import NamedTuple, Protocol

from s3fs_meta.model import Ino


class Turned(NamedTuple):
    """The names, inodes and contents that a txg changed, for caches of answers."""

    names: set[tuple[Ino, bytes]]
    inodes: set[Ino]
    contents: set[Ino]


class Kernel(Protocol):
    """Holds dirty pages that it has not written back yet, and caches answers."""

    async def collect(self) -> object:
        """Make the kernel write back all pages dirtied before this call, within a time limit."""
        ...

    async def before_turn(self, turned: Turned | None) -> None:
        """Before a txg is shown: drop its answers (None: all), and cache none until ``at_turn``."""
        ...

    def at_turn(self) -> None:
        """Cache answers again, because the new txg is shown now. Schedule point: never."""
        ...

    async def after_turn(self, turned: Turned | None) -> None:
        """Drop answers that were given just before the switch, and file content."""
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
