"""Synchronisation of the local state with the bucket.

opening/        opening a filesystem: keys, lock, local state or bucket, lease
volume          one filesystem that is open on this host
kernel          the requests of a session to the kernel of its mountpoint
session         one opened filesystem with its cache and its background tasks
upload/         dirty blocks into packs
changelog/      transaction groups into the chain
chain/          reading the chain: listing, verifying and applying changelogs
image/          complete copies of the metadata, and restoring from them
lease/          at most one writer: lease, epoch, fence
history/        points in time, retention, garbage
keeping         keeping points in time under names, and dropping them
superblock/     selecting the superblock to use, and writing it
follower/       a read-only mount that follows the changes of another host
uncached_reads  reading blocks from packs without a cache, for restore and exports
durability      commits and fsync on this host; ``state_dir``: the directory of the local state

Start at ``session``, then ``changelog.writer``. No two folders import each other.
Below: cache (block files), meta (rows), codec (bytes), objects (the store).
Above: fs, check, mount.
"""
