"""Statements on complete directory trees: many rows with one statement.

removed_trees   trees that were removed with one operation and are deleted in the background
tree_copies     copies of trees
tree_paths      paths of inodes, for messages; whether recorded changes concern a path
bulk_records    the binary form of rows that one statement makes

Start at ``removed_trees``.
Below: tables, db, changesets.
Above: fs.trees, sync.history.
"""
