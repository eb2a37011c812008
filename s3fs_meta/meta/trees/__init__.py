"""Statements on complete directory trees: many rows with one statement.

removed_trees   trees that were removed with one operation and are deleted in the background
tree_copies     copies of trees, which share their blocks with the originals
tree_paths      paths of inodes, for messages; whether recorded changes concern a path
bulk_records    changesets of the rows that one statement inserts

Start at ``removed_trees``.
Below: tables, db, changesets.
Above: fs.trees, sync.history.
"""
