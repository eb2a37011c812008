"""A walk over the blocks of all files in trees, in slices of the event loop.

Owns: the order of the walk and its slices. Does not know: how the caller uses the blocks.
Changes during the walk may be missed. The blocks of unchanged files are never missed.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import trio

from s3fs_meta.errors import MetadataError
from s3fs_meta.fs.slices import DEFAULT_SLICES, Slices
from s3fs_meta.fs.trees.remove import yield_to_tasks
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.trees import removed_trees, tree_content
from s3fs_meta.meta.trees.tree_content import TreeBlock
from s3fs_meta.model import ROOT_INO, BlockIndex, Cookie, Ino

Take = Callable[[Sequence[TreeBlock]], None]
"""A function that receives the blocks of one slice. It must not wait; its error ends the walk."""


async def walk(
    db: Database, roots: Iterable[Ino], take: Take, slices: Slices = DEFAULT_SLICES
) -> None:
    """Call *take* with the blocks of all files in trees.

    A block that files share, or whose file has several names, may be passed more than once.

    Args:
        db: the database of the mount.
        roots: files and directories; a missing inode has no blocks.
        take: called with the blocks of each slice.
        slices: bounds of the work between two schedule points.

    Raises:
        MetadataError: the directories form a cycle.

    Yields to other tasks between slices.
    """
    inos = list(dict.fromkeys(roots))
    # Treat each root as a file; a directory has no blocks.
    files = [(ino, BlockIndex(0)) for ino in inos]
    # Treat each root as a directory as well; a file contains no names.
    directories = dict.fromkeys(inos, Cookie(0))
    names_seen = names_max = 0
    while files or directories:
        began_s = trio.current_time()
        if files:
            files = _take_blocks(db, files, take, slices.walked_blocks)
        else:
            files, names = _next_names(db, directories, slices)
            names_seen += names
            names_max = max(names_max, 2 * (db.counters.dentries + 1) * len(inos))
        if names_seen > names_max:
            raise MetadataError("the directories of a tree form a cycle", ROOT_INO)
        await yield_to_tasks(trio.current_time() - began_s)


def _take_blocks(
    db: Database, files: list[tuple[Ino, BlockIndex]], take: Take, limit: int
) -> list[tuple[Ino, BlockIndex]]:
    """Pass one slice of blocks to *take*; return the remaining files."""
    found = tree_content.blocks_of(db, files, limit)
    take(found.blocks)
    if found.last is None:
        return []
    ino, index = found.last
    at = [each for each, _first in files].index(ino)
    return [(ino, BlockIndex(index + 1)), *files[at + 1 :]]


def _next_names(
    db: Database, directories: dict[Ino, Cookie], slices: Slices
) -> tuple[list[tuple[Ino, BlockIndex]], int]:
    """Read one slice of the names of directories; keep the directories among them.

    If a directory is also a root, it keeps its position in the list and is read only once.

    Returns:
        The inodes that are not directories, each once, and the number of names.
    """
    taken = list(islice(reversed(directories.items()), slices.directories))
    found = removed_trees.children(db, taken, slices.names)
    last = found[-1] if len(found) == slices.names else None
    for parent, _after in taken:
        if last is not None and parent == last.parent:
            directories[parent] = last.cookie
            break
        del directories[parent]
    for child in found:
        if child.names:
            directories.setdefault(child.ino, Cookie(0))
    files = dict.fromkeys(child.ino for child in found if not child.names)
    return [(ino, BlockIndex(0)) for ino in files], len(found)
