"""Operations on databases that no mount uses.

image_copy:       makes an image from a database copy.
restored_schema:  checks that a downloaded database has the tables of the schema.
page_trees:       checks that the pages of a downloaded database form trees.
rollback:         prepares a database of an earlier txg as the next state of the filesystem.
rebuild:          recreates rows from the indexes of packs, and from intact pieces of an image.
image_rows:       adopts rows of a damaged image that the indexes of packs confirm.
salvage:          reads a database file in which pages are missing.
first_root:       reconstructs the root directory that mkfs created, from later changes to it.
page_size:        rewrites a closed database with another page size.
histories:        compares two databases that should be states of the same history.

Below: tables, db, replica.
Above: sync.image, sync.history, check.
"""
