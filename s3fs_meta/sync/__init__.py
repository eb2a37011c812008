"""Synchronisation of the local state with the bucket.

opening/:       opening a filesystem: keys, lock, local state or bucket, lease.
volume:         one filesystem, opened on this host.
kernel:         the requests that a session sends to the kernel.
session:        one opened filesystem with its cache and its background tasks.
upload/:        storing dirty blocks in packs.
changelog/:     appending transaction groups to the chain.
chain/:         reading the chain: listing, verifying and applying changelogs.
image/:         complete copies of the metadata, and restoring from them.
lease/:         allowing at most one writer: lease, epoch, fence.
history/:       points in time, retention, garbage collection.
administration/: mkfs, destroy, rollback, and creating kept points.
superblock/:    selecting the superblock to use, and writing it.
follower/:      a read-only mount that follows the changes of another host.
uncached_reads: reading blocks from packs without a cache, for restore and exports.
durability:     commits and syncs on this host.
host_state/:    the files of this host beside the database: state directory, request log.

Start at ``session``, then ``changelog.writer``. No two folders import each other.
Below: cache (block files), meta (rows), codec (bytes), objects (the store).
Above: fs, check, mount.
"""
