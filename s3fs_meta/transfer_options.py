"""Rows of the table of mount options about the cache, uploads and downloads.

Owns: names, defaults, effects and costs of these options. Does not know: the other rows
(``option_table``), the use of a value.
"""

from typing import Final

from s3fs_meta.option_row import NO_EFFECT, Option
from s3fs_meta.option_syntax import OneOf, cache_bytes, seconds
from s3fs_meta.rate_limit import rate_limit

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
        "Disk space. When the cache is full of blocks that are not uploaded yet, writers wait.",
        "A larger cache can hold more blocks that are not uploaded yet.",
    ),
    Option(
        "upload_limit",
        "upload_limit",
        "RATE",
        rate_limit,
        "off",
        "Maximum rate of background uploads of file content and metadata images, in bytes per "
        "second: `512K`, `off`, or a timetable by local time as of rclone's `--bwlimit`: "
        "`08:00=512K;19:00=10M;23:00=off`, with weekdays `Mon-08:00=512K;Sat-00:00=off`. `flush`, "
        "`umount`, `reclaim`, `fsync=remote` and writers that wait for room in the cache lift the "
        "limit; with `1M;strict` they do not. Changelogs and the lease are never delayed.",
        "Changes reach the bucket later. A pack of up to 16 MiB waits until the rate allows all of "
        "it, and is then sent at full speed.",
        "Loss of this machine costs what waits for its upload.",
    ),
    Option(
        "download_limit",
        "download_limit",
        "RATE",
        rate_limit,
        "off",
        "Maximum rate of downloads of file content: reads of programs, read-ahead, `warm` and "
        "compaction. Syntax as of `upload_limit`. Reads come before read-ahead and `warm`. "
        "Changelogs, images and the lease are never delayed.",
        "Reads of content that is not cached wait as long as the rate requires; `read_timeout` "
        "begins after that wait.",
        NO_EFFECT,
    ),
    Option(
        "commit",
        "commit_interval_s",
        "SECONDS",
        seconds(COMMIT_INTERVAL_S_MIN),
        "5",
        "How often all changes are synced to the local disk, file blocks before metadata.",
        "A shorter interval syncs more often.",
        "Power loss loses at most this many seconds of unsynced data. A killed daemon loses the "
        "last 5 ms of changes, or up to 50 ms if changes follow each other without a pause.",
    ),
    Option(
        "sync_interval",
        "sync_interval_s",
        "SECONDS",
        seconds(SYNC_INTERVAL_S_MIN),
        "5",
        "How often changes are uploaded: new content, then one changelog.",
        "After each interval with changes, uploads of one or more packs and one small object.",
        "Loss of this machine costs the changes of the last one or two intervals.",
    ),
    Option(
        "fsync",
        "fsync",
        "WHERE",
        OneOf("local", "remote"),
        "local",
        "What fsync(2) waits for: the local disk, or also the bucket.",
        "With `remote` each fsync takes as long as the uploads of a pack and a changelog; fsyncs "
        "that are called meanwhile share the next uploads. After `write_timeout` fsync fails with "
        "EIO, and the upload continues.",
        "With `remote` loss of this machine costs no fsynced changes.",
    ),
    Option(
        "image_interval",
        "image_interval_s",
        "SECONDS",
        seconds(1.0),
        "1d",
        "Longest time between two uploads of a complete metadata image while changes are made; "
        "many changes shorten it.",
        "Uploads of the image pieces that changed.",
        "None; a restore also reads the changes since the last image.",
    ),
    Option(
        "poll",
        "poll_interval_s",
        "SECONDS",
        seconds(POLL_INTERVAL_S_MIN),
        "2",
        "How often a mount with `follow` polls for new transaction groups.",
        "One request per poll.",
        NO_EFFECT,
    ),
    Option(
        "read_timeout",
        "read_timeout_s",
        "SECONDS",
        seconds(1.0),
        "60",
        "How long a read of a block that is not cached waits for the bucket before EIO.",
        "Programs wait this long in an outage, or twice as long, because the kernel repeats a read "
        "that failed.",
        NO_EFFECT,
    ),
    Option(
        "write_timeout",
        "write_timeout_s",
        "SECONDS",
        seconds(1.0),
        "60",
        "How long a write waits for space in a cache full of blocks that are not uploaded, before "
        "it fails with ENOSPC.",
        "Programs wait this long in an outage.",
        NO_EFFECT,
    ),
)
