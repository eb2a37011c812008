"""The kernel as a session needs it: written data to collect, cached answers to drop.

Owns: the contract, and the kernel of a session that no kernel uses. Does not know: FUSE.
"""

from typing import NamedTuple, Protocol

from s3fs_meta.model import Ino


class Turned(NamedTuple):
    """The names, inodes and contents that a txg changed, for caches of answers."""

    names: set[tuple[Ino, bytes]]
    inodes: set[Ino]
    contents: set[Ino]


class Kernel(Protocol):
    """Holds written data that no request has brought yet, and caches answers."""

    async def collect(self) -> object:
        """Have all data handed over that programs wrote before this call, within a time limit."""
        ...

    async def before_turn(self, turned: Turned | None) -> None:
        """Drop these answers, or all for None, and cache none until ``at_turn``."""
        ...

    def at_turn(self) -> None:
        """Cache answers again: they are those of the new txg. Schedule point: never."""
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
