"""Images: complete copies of the metadata database in the bucket.

image:   the pieces of a database file, and a manifest that lists them.
restore: creating a local database from an image and the changelogs after it.
salvage: writing the intact pieces of an image that cannot be restored.

A host without a usable local database starts from the head, the newest complete image.

Start at ``writer``; ``pieces`` uploads the objects of one image. ``restore_process`` runs a restore
in a separate process, whose code is in ``process_script`` and ``process_worker``.
Below: changelog (its snapshots), chain, meta.offline (the copy).
Above: session, opening, history.
"""
