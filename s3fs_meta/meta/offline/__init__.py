"""Work on databases that no mount uses.

image_copy        preparing a copy of the database as an image
restored_schema   whether the tables of a downloaded database are ours
rollback          preparing a database of a past txg as the next state
rebuild           rows made from the indexes of packs, and from intact pieces of an image
image_rows        rows of a damaged image, as far as the indexes of packs confirm them
salvage           reading a database file in which pages are missing
first_root        the root directory as mkfs made it, from later changes of it
page_size         a closed database rewritten with another page size

Below: tables, db, replica.
Above: sync.image, sync.history, check.
"""
