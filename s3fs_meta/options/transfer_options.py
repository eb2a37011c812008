"""The rows of the mount option table about the cache, uploads and downloads.

Owns: names, defaults, effects and costs of these options. Does not know: all other rows
(``option_table``), how a value is used.
"""

from typing import Final

from s3fs_meta.options.option_row import NO_EFFECT, Option
from s3fs_meta.options.option_syntax import OneOf, cache_bytes, seconds
from s3fs_meta.options.rate_limit import rate_limit

COMMIT_INTERVAL_S_MIN: Final = 0.1
SYNC_INTERVAL_S_MIN: Final = 0.5
POLL_INTERVAL_S_MIN: Final = 0.1

TRANSFER_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "cachesize",
        "cache_bytes",
        "SIZE",
        cache_bytes,
        "10G",
        "Maximum size of the cached file blocks.",
        "The cache uses disk space. When it is full of blocks that are not uploaded yet, writers "
        "wait.",
        "If the local disk is lost, blocks that are not uploaded yet are lost. A larger cache can "
        "contain more of them.",
    ),
    Option(
        "upload_limit",
        "upload_limit",
        "RATE",
        rate_limit,
        "off",
        "Maximum rate of background uploads of file content and metadata images, in bytes per "
        "second: `512K`, `off`, or a timetable in local time like rclone's `--bwlimit`: "
        "`08:00=512K;19:00=10M;23:00=off`, with weekdays `Mon-08:00=512K;Sat-00:00=off`. `flush`, "
        "`umount`, `keep`, `reclaim`, `fsync=remote` and writers that wait for space in the cache lift the "
        "limit, but not a strict limit such as `1M;strict`. Changelogs and the lease are never "
        "delayed.",
        "With a limit, changes reach the bucket later. A pack of about 16 MiB waits until the rate "
        "allows the complete pack, which is then sent at full speed.",
        "If this machine is lost, changes that wait for their upload are lost.",
    ),
    Option(
        "download_limit",
        "download_limit",
        "RATE",
        rate_limit,
        "off",
        "Maximum rate of downloads of file content: reads by programs, read-ahead, `warm` and "
        "compaction. The syntax is as for `upload_limit`. Reads have priority over read-ahead and "
        "`warm`. Changelogs, images and the lease are never delayed.",
        "Reads of uncached content wait as long as the rate requires; `read_timeout` starts after "
        "the wait.",
        NO_EFFECT,
    ),
    Option(
        "commit",
        "commit_interval_s",
        "SECONDS",
        seconds(COMMIT_INTERVAL_S_MIN),
        "5",
        "How often all changes are synced to the local disk, file blocks before metadata.",
        "A shorter interval causes more syncs of the local disk.",
        "Power loss loses at most the changes without fsync of the last SECONDS, plus those made "
        "during the last sync. If the daemon is killed, the changes of the last 5 to 50 ms are "
        "lost, and of data in open files usually at most the last SECONDS.",
    ),
    Option(
        "sync_interval",
        "sync_interval_s",
        "SECONDS",
        seconds(SYNC_INTERVAL_S_MIN),
        "5",
        "How often changes are uploaded: first new content, then one changelog.",
        "Each interval with changes uploads one small object, and packs if there is new content.",
        "If this machine is lost, the changes of the last one or two intervals are lost, plus "
        "those made while the last upload was running; more are lost if the store is slow or "
        "unavailable.",
    ),
    Option(
        "fsync",
        "fsync",
        "WHERE",
        OneOf("local", "remote"),
        "local",
        "Where fsync(2) makes changes durable: on the local disk, or also in the bucket.",
        "With `remote` each fsync waits for the upload of a pack and a changelog; concurrent "
        "fsyncs "
        "share uploads. After `write_timeout` fsync fails with EIO, and the upload continues.",
        "With `remote`, fsynced changes survive the loss of this machine.",
    ),
    Option(
        "image_interval",
        "image_interval_s",
        "SECONDS",
        seconds(1.0),
        "1d",
        "Maximum time between two uploads of a complete metadata image while changes are made; "
        "after many changes an image is uploaded earlier.",
        "Each image uploads the pieces that changed.",
        "Nothing is lost: a restore also reads the changes since the last image.",
    ),
    Option(
        "poll",
        "poll_interval_s",
        "SECONDS",
        seconds(POLL_INTERVAL_S_MIN),
        "2",
        "How often a mount with `follow` polls for new transaction groups.",
        "Each poll is one request to the bucket, plus requests for each new transaction group. "
        "Every 30th poll without a new group also lists the bucket.",
        NO_EFFECT,
    ),
    Option(
        "read_timeout",
        "read_timeout_s",
        "SECONDS",
        seconds(1.0),
        "60",
        "How long a read of an uncached block waits for the bucket before it fails with EIO.",
        "During an outage, a read can block for up to twice `read_timeout`, because the kernel "
        "retries a failed read.",
        NO_EFFECT,
    ),
    Option(
        "write_timeout",
        "write_timeout_s",
        "SECONDS",
        seconds(1.0),
        "60",
        "How long a write waits for space in a cache full of blocks that are not uploaded, before "
        "it fails with ENOSPC. While a pack is being uploaded at 32 KiB/s or faster, the write "
        "continues to wait.",
        "During an outage of the bucket, a write to a full cache waits at most `write_timeout`. After "
        "it has failed, other writes wait a twentieth of this time, until `write_timeout` has passed "
        "again.",
        NO_EFFECT,
    ),
)
