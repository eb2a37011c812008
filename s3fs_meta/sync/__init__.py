"""Between the local state and the bucket.

opening/      keys, lock, local state or bucket, lease: the order in which a filesystem is opened
volume        one filesystem that is open on this host
session       one opened filesystem with its cache and its background tasks
upload/       dirty blocks into packs
changelog/    transaction groups into the chain
chain/        the chain read: finding, verifying and applying what it holds
image/        complete copies of the metadata, and restoring one
lease/        the one writer: lease, epoch, fence
history/      points in time, retention, garbage
superblock/   which superblock counts, and writing it
follower/     a mount that shows what another host writes
durability    commits and fsync on this host; ``state_dir``: the directory of the local state

Start at ``session``, then ``changelog.writer``. No folder imports one that imports it.
Below: cache (block files), meta (rows), codec (bytes), objects (the store).
Above: fs, check, mount.
"""
