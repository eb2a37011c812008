"""The visible state of a ``Filesystem``, in the types of the model.

Owns: walking a ``Filesystem`` and describing its inodes. Does not know: the expected state.
"""

import stat

from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.model import ROOT_INO, Attributes, Caller, Cookie
from s3fs_meta.testing.model_fs import Seen

_ROOT = Caller(0, 0, 0, 1)
_PAGE = 3  # small, so that directories take several pages


async def tree_of(fs: Filesystem, *, content: bool = True) -> dict[bytes, Seen]:
    """Return the state of every named inode, by path; the root is ``/``.

    Args:
        content: read every file; blocks that are not cached are downloaded.
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
    """Return a directory's names and attributes; check that its size is their number."""
    found: list[tuple[bytes, Attributes]] = []
    after = Cookie(0)
    while page := fs.read_directory(directory.ino, after, _PAGE):
        found += [(name, attributes) for name, _cookie, attributes in page]
        after = page[-1][1]
    assert directory.size_bytes == len(found), "a directory's size is its number of names"
    return found
