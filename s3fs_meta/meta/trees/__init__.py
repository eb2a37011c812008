"""Trees of directories: many rows with one statement.

removed_trees   trees that were removed at once, and are taken apart later
tree_copies     copies of trees; ``bulk_records`` records their rows for a changelog
tree_paths      paths of inodes, for people
path_history    whether recorded changes concern a path

Start at ``removed_trees``.
Below: tables, db, changesets.
Above: fs.trees, sync.history.
"""
