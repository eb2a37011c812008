"""Synchronisation of the local state with the bucket.

opening/        keys, lock, local state or bucket, lease: the order in which a filesystem is opened
volume          one filesystem that is open on this host
kernel          the requests of a session to the kernel of its mountpoint
session         one opened filesystem with its cache and its background tasks
upload/         dirty blocks into packs
changelog/      transaction groups into the chain
chain/          reading the chain: finding, verifying and applying changelogs
image/          complete copies of the metadata, and restoring one
lease/          the one writer: lease, epoch, fence
history/        points in time, retention, garbage
superblock/     selecting the superblock to use, and writing it
follower/       a read-only mount that follows the changes of another host
uncached_reads  blocks read from their packs without a cache: for restore and exports
durability      commits and fsync on this host; ``state_dir``: the directory of the local state

Start at ``session``, then ``changelog.writer``. No folder imports one that imports it.
Below: cache (block files), meta (rows), codec (bytes), objects (the store).
Above: fs, check, mount.
"""
