"""The visible state of a ``Filesystem``, expressed in the reference model's types.

Owns: walking a ``Filesystem`` and describing its inodes. Does not know: the expected state.
"""

import stat

from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.model import ROOT_INO, Attributes, Caller, Cookie, Ino
from s3fs_meta.testing.model_fs import ModelFilesystem, Seen

_ROOT = Caller(0, 0, 0, 1)
_PAGE = 3  # number of entries per page; small, so that one directory needs several pages


async def tree_of(fs: Filesystem, *, content: bool = True) -> dict[bytes, Seen]:
    """Return the visible state of each inode by path; the root is ``/``.

    Args:
        fs: the filesystem.
        content: True to read every file, which downloads uncached blocks.
    """
    found: dict[bytes, Seen] = {}
    waiting = [(b"/", fs.getattr(ROOT_INO))]
    while waiting:
        path, attributes = waiting.pop()
        found[path] = await seen(fs, attributes, content=content)
        if stat.S_ISDIR(attributes.mode):
            base = path if path == b"/" else path + b"/"
            waiting += [(base + name, child) for name, child in entries(fs, attributes)]
    return found


async def seen(fs: Filesystem, attributes: Attributes, *, content: bool = True) -> Seen:
    """Return the visible state of one inode."""
    ino, mode = attributes.ino, attributes.mode
    is_file = stat.S_ISREG(mode)
    return Seen(
        ino,
        mode,
        attributes.nlink,
        attributes.uid,
        attributes.gid,
        0 if stat.S_ISDIR(mode) else attributes.size_bytes,
        await fs.read(ino, 0, attributes.size_bytes) if is_file and content else None,
        fs.readlink(ino) if stat.S_ISLNK(mode) else b"",
        tuple(sorted((name, fs.xattrs.get(ino, name)) for name in fs.xattrs.names(ino, _ROOT))),
    )


def entries(fs: Filesystem, directory: Attributes) -> list[tuple[bytes, Attributes]]:
    """Return the names and attributes in a directory; check the directory's size."""
    found: list[tuple[bytes, Attributes]] = []
    after = Cookie(0)
    while page := fs.read_directory(directory.ino, after, _PAGE):
        found += [(name, attributes) for name, _cookie, attributes in page]
        after = page[-1][1]
    assert directory.size_bytes == len(found), "the size of a directory must be its number of names"
    return found


def numbers_of_copy(
    fs: Filesystem, model: ModelFilesystem, parent: Ino, name: bytes, *, first: Ino
) -> dict[Ino, Ino]:
    """Map the inode numbers of a copied tree from the model to the filesystem.

    Args:
        fs: the filesystem.
        model: the model of the filesystem, which also contains the tree.
        parent: the directory with the name of the copy.
        name: the name of the copy.
        first: the lowest number that no inode had before the copy.
    """
    numbers: dict[Ino, Ino] = {}
    waiting = [(model.nodes[parent].entries[name], fs.lookup(parent, name))]
    while waiting:
        ino, real = waiting.pop()
        assert real is not None, "a name of the copied tree is missing"
        assert real.ino >= first, "an inode of the copy existed before"
        assert numbers.setdefault(ino, real.ino) == real.ino, (
            "hard links of the copy are separate inodes"
        )
        waiting += [
            (child, fs.lookup(real.ino, name)) for name, child in model.nodes[ino].entries.items()
        ]
    return numbers
