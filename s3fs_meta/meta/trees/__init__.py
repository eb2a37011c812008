"""Statements on complete directory trees; each statement reads or changes many rows.

removed_trees:  trees that were removed with one operation and are deleted in the background.
tree_copies:    copies of trees, which share their blocks with the originals.
past_content:   blocks of a past point in time that become blocks of copies.
past_survey:    the packs that a past tree needs.
past_tree:      the last txg in which an inode was below a directory.
tree_paths:     paths of inodes, for messages.
inode_set:      inode numbers that a walk has found.
bulk_records:   changesets of the rows that one statement inserts.
tree_content:   the blocks of many files, found with one query.
tree_diff:      the differences between two states of a filesystem.
name_search:    a search for names below a directory.
folder_sizes:   the sizes of all directories.

Start at ``removed_trees``.
Below: tables, db, changesets.
Above: fs.trees, sync.history.
"""
