"""POSIX semantics without FUSE.

filesystem:   one mounted filesystem, assembled from its parts.
namespace:    lookup, create, link, unlink, rename; see also ``ancestry``.
attributes:   mode, owner, times; see also ``acl`` and ``xattrs``.
content/:     read and write of file content.
trees/:       cloning, removing and locking complete trees.
orphans:      inodes without a name; they are kept while they are in use.
write_gate:   the checks before every operation that changes files.
flags/:       immutable, append-only and locked files, and the checks that protect them.

Start at ``namespace``. ``lookup_counts`` and ``open_files`` list the inodes that the kernel still
uses; ``removed_trees`` lists the removed trees that are not empty yet.
Below: cache (blocks), meta (rows).
Above: fuse, mount.
"""
