"""Opening a filesystem on this host.

opening:             the order of steps: keys, lock, local state or bucket, lease, fence record.
local_state_choice:  continue from the local database, follow the bucket, or restore.
current_database:    the resulting database: local, or restored up to a retained txg.
offline:             opening read-only while the bucket is unreachable.

Start at ``opening``; the table in ``local_state_choice`` shows the decision.
Below: lease, superblock, image, history.
Above: session, mkfs, mount.
"""
