"""fsck: numbered invariants over the complete database, and their repairs.

invariant      a query for the rows that break one sentence, and what to do with them
rules/         the invariants, by the table that they are about
observations   what surveys saw outside the database, as rows beside it
survey/        reading the bucket, packs, the cache and the chain of changelogs
lost_found     the directory for inodes without a name; ``lost_data``: the record of parts of files
               whose bytes are lost
from_packs     a filesystem made anew from its packs and intact pieces of an image (--rebuild)
marks          damage marks: set and removed by what fsck read
report         findings, and the exit status that they mean

Start at ``run``, then ``context`` (the form of an invariant) and ``rules.names``.
``fsck`` judges all invariants in one transaction; ``scratch_tables`` has sums that many use.
Below: sync (chain, mkfs), cache, meta.
Above: cli.fsck.
"""
