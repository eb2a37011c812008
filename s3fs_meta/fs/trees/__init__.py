"""Operations on complete trees of directories, in slices.

clone:     copies a tree; uploaded content is shared.
remove:    removes a tree's name immediately, and frees its space in the background.
lock:      makes every inode of a tree permanently immutable.
tree_walk: lists the blocks of a tree; ``warm`` downloads the uncached blocks.
pins:      trees whose content stays in the cache; ``pins_file`` records them.

A slice is the part of the work that is done before other requests are served.

Start at ``remove``. ``fs.removed_trees`` counts the progress for the caller.
Below: namespace, orphans, meta.trees.
Above: filesystem, mount.handlers.tree_handlers.
"""
