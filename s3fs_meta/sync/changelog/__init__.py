"""Writing changelogs: the changes of each transaction group, appended to the chain.

txg        one transaction group: everything between two cuts
frozen     a consistent snapshot of the rows on its way to the bucket, and the packs and offsets of its
           blocks, as its changelog lists them
pending    recorded changes that no changelog holds yet; ``pending_merge`` keeps them few

Start at ``writer``. ``level_writer`` makes levels.
Below: upload (packs come first), chain, meta.changesets (rows).
Above: image, session.
"""
