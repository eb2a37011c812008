"""Trees of directories: many rows with one statement.

removed_trees   trees that were removed at once, and are taken apart later
tree_copies     copies of trees
tree_paths      paths of inodes, for people; whether recorded changes concern a path
bulk_records    the binary form of rows that one statement makes

Start at ``removed_trees``.
Below: tables, db, changesets.
Above: fs.trees, sync.history.
"""
