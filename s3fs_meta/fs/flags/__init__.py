"""Files that must not change: inode flags, locked trees, and the checks of both.

protection:  the checks that refuse a change of a protected file or name.
inode_flags: reading and setting the flags immutable and append-only (``chattr``).
name_marks:  marks the directories above a protected inode.

``trees.lock`` protects complete trees.

Start at ``protection``.
Below: open_files, write_gate, meta.tables.
Above: namespace, attributes, xattrs, trees.
"""
