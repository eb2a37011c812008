"""Writing changelogs: the changes of each transaction group, appended to the chain.

txg:       one transaction group: all changes between two cuts.
cut:       a consistent snapshot of the rows that is being shipped, and the block locations that its
           changelog lists (``cut_content``).
pending:   recorded changes that are not in a changelog yet; ``pending_merge`` merges them.

Start at ``writer``. ``level_writer`` creates levels. ``wal_bound`` stops an upload of blocks if the
write-ahead log grows too much.
Below: upload (packs are stored before changelogs), chain, meta.changesets (rows).
Above: image, session.
"""
