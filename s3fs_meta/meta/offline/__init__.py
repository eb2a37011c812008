"""Work on databases that no mount uses.

image_copy        makes an image of a copy of the database
restored_schema   checks that the tables of a downloaded database are those of the schema
page_trees        checks that the pages of a downloaded database form trees
rollback          makes a database of an earlier txg the next state of the filesystem
rebuild           makes rows from the indexes of packs, and from intact pieces of an image
image_rows        adopts rows of a damaged image that the indexes of packs confirm
salvage           reads a database file in which pages are missing
first_root        restores the root directory that mkfs made, from later changes of it
page_size         rewrites a closed database with another page size

Below: tables, db, replica.
Above: sync.image, sync.history, check.
"""
