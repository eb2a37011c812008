"""Garbage collection: deleting objects that no retained txg needs.

retention:      chooses the oldest available txg and the images to keep.
garbage_search: lists the objects that no retained txg needs.
orphan_packs:   lists packs in the bucket that have no row in the database.
found_garbage:  the objects that a search found, by kind.
own_objects:    proves from its content that this filesystem wrote an object.
deletion:       sends DELETE requests, and remembers the objects that the store refuses to delete.
reclaim:        deletes garbage.
older_bucket:   uploads the local state again after the bucket was reset to an older copy.

Start at ``reclaim``.
Below: kept (pins of kept points), chain, upload.
Above: session, check, cli.reclaim.
"""
