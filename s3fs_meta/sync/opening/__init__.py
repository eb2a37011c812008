"""Opening a filesystem on this host.

opening:             the order of steps: keys, lock, local state or bucket, lease, fence record.
local_state_choice:  continue from the local database, follow the bucket, or restore.
current_database:    the resulting database: local, or restored up to a retained txg.
end_marks:           records on disk that a process runs, and that it ended cleanly.
local_facts:         checks the facts that the local database records about this host.
failed_sync:         writes the local state to the disk again after a sync failed.
strays:              removes or quarantines block files without a row.
hole_healing:        refills holes that fsck made, from quarantined states.
offline:             opening read-only while the bucket is unreachable.

Start at ``opening``; the docstring of ``local_state_choice`` lists the decisions.
Below: lease, superblock, image, history.
Above: session, mkfs, mount.
"""
