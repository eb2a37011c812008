"""fsck: numbered invariants over the complete database, and their repairs.

invariant:     a rule that must always hold, a query for the rows that break it, and a repair.
rules/:        the invariants, grouped by subject.
observations:  the results of surveys, in temporary tables.
survey/:       reading the bucket, packs, the cache and the chain of changelogs.
lost_found:    the directory for inodes without a name.
lost_data:     the record of lost bytes, in an extended attribute of each file.
from_packs:    rebuilds a filesystem without images, from packs and changelogs (--rebuild).
object_copies: restores missing or damaged objects from copies in another store.
marks:         sets and removes damage marks after fsck has read the packs.
report:        the findings, and the exit status computed from the findings.

Start at ``run``, then ``context`` (the form of an invariant) and ``rules.names``.
``fsck`` checks the invariants in one transaction, in which ``sums`` first counts names, links and
references.
Below: sync (chain, mkfs), cache, meta.
Above: cli.fsck.
"""
