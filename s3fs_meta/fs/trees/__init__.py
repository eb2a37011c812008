"""Operations on complete trees of directories, in slices.

clone      a copy whose content is shared
remove     a tree without a name at once, its space freed in the background
lock       every inode of a tree made immutable
slice      the part that is done before other requests get their turn

Start at ``remove``. ``fs.removed_trees`` counts the progress for the caller.
Below: namespace, orphans, meta.trees.
Above: filesystem, mount.tree_handlers.
"""
