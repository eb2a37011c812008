"""POSIX semantics without FUSE.

filesystem    one mounted filesystem: the parts put together
namespace     lookup, create, link, unlink, rename
attributes    mode, owner, times; ``acl``, ``xattrs`` and ``inode_flags`` beside it
content/      read and write of file content
trees/        clone, remove and lock of complete trees
orphans       inodes without a name, kept while they are open
write_gate    the check that every changing operation passes; ``protection``: immutable inodes

Start at ``namespace``. ``lookup_counts`` and ``open_files`` know the inodes that the kernel still
uses, ``removed_trees`` the trees that are not empty yet.
Below: cache (blocks), meta (rows).
Above: fuse, mount.
"""
