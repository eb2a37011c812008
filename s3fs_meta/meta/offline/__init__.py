"""Databases that no mount uses.

image_copy        a copy of the database on its way to become an image
restored_schema   whether the tables of a downloaded database are ours
rollback          a database of the past, made fit to continue from the present
rebuild           rows made from the indexes of packs, and from intact pieces of an image
image_rows        the rows of a damaged image, taken over as far as packs bear them out
salvage           reading a database file in which pages are missing
page_size         a closed database rewritten with another page size

Below: tables, db, apply_changeset.
Above: sync.image, sync.history, check.
"""
