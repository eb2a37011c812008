"""The table of mount options (``-o``): one row per option, with its complete documentation.

Owns: names, defaults, effects and costs; docs/reference/settings.md is generated from them.
Does not know: how values are used. ``transfer_options`` contains the rows about cache and bucket.
Source: mount(8), "FILESYSTEM-INDEPENDENT MOUNT OPTIONS"; fstab(5).
"""

from collections.abc import Mapping
from typing import Any, Final

from s3fs_meta.model import AccessTime
from s3fs_meta.options.option_row import NO_EFFECT, NOTHING, Option
from s3fs_meta.options.option_syntax import (
    OneOf,
    entry_name,
    flag,
    integer,
    listen_address,
    mark,
    mode_mask,
    page_cache,
    page_size,
    parse_size,
    path_value,
    point_in_time,
    point_of_txg,
    text_value,
)
from s3fs_meta.options.transfer_options import TRANSFER_OPTIONS

ID_MAX: Final = (1 << 32) - 2  # largest ID; (uid_t) -1 means "unchanged" for chown(2)

# Options without effect, which this release still accepts with a warning.
WITHOUT_EFFECT: Final = ("request_loop", "extension")

OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "journal_mode",
        "journal_mode",
        "MODE",
        OneOf("wal", "delete", "truncate", "persist", "memory", "off"),
        "wal",
        "How SQLite protects the metadata database against crashes.",
        "With `wal`, reads, checkpoints and images run concurrently with writes. With the other "
        "modes, an image blocks the mount while the database is copied. With `delete`, `truncate` "
        "and `persist`, each commit costs one or two fsyncs.",
        "`wal`, `delete`, `truncate`, `persist`: nothing that was fsynced is lost. `memory`, "
        "`off`: after any crash the local state is quarantined and the state in the bucket "
        "restored; under `off` any SQLite error makes the mount read-only.",
    ),
    Option(
        "synchronous",
        "synchronous",
        "LEVEL",
        OneOf("off", "normal", "full", "extra"),
        "normal",
        "How often SQLite syncs on its own. At every level except `off`, `fsync` makes a file "
        "durable.",
        "`full` and `extra` sync at every group commit, 20 to 200 times per second on a disk that "
        "needs 5 ms for a sync; `normal` and `off` do not.",
        "`normal` and above: power loss loses at most `commit=` seconds of changes that were not "
        "fsynced. `off`: after power loss the local state is quarantined and the state in the "
        "bucket restored; even fsynced changes may be lost.",
    ),
    Option(
        "page_size",
        "page_size",
        "BYTES",
        page_size,
        "",
        "Page size of the database; default: unchanged. Any other size converts the database "
        "before the mount starts.",
        "Larger pages make sequential reads faster and each change more expensive. A conversion "
        "needs twice the disk space of the database and time in proportion to its size, and it "
        "uploads a complete new image.",
        "After a crash during the conversion the database has the old or the new page size.",
    ),
    Option(
        "cache_size",
        "cache_size",
        "PAGES|SIZE",
        page_cache,
        "",
        "SQLite's page cache: a number of pages, a negative number of KiB, or a size such as "
        "`256M`; default: 1/256 of the machine's memory, but 4 to 8 MiB.",
        "The page cache uses the daemon's memory. With a small cache, metadata operations read "
        "from the disk.",
        NO_EFFECT,
    ),
    Option(
        "mmap_size",
        "mmap_size",
        "SIZE",
        parse_size,
        "0",
        "Number of bytes of the database that SQLite reads through a memory map.",
        "The memory map uses address space. A disk I/O error kills the daemon instead of "
        "returning EIO.",
        NO_EFFECT,
    ),
    Option(
        "wal_autocheckpoint",
        "wal_autocheckpoint",
        "PAGES",
        integer(0, (1 << 31) - 1),
        "0",
        "Size of the WAL, in pages, at which a commit checkpoints it. With 0 the mount checkpoints "
        "in the background.",
        "With a value above 0, some commits wait for a checkpoint, which delays all requests by "
        "tens of milliseconds.",
        NO_EFFECT,
    ),
    Option(
        "journal_size_limit",
        "journal_size_limit_bytes",
        "SIZE",
        parse_size,
        "",
        "Size to which SQLite truncates a WAL or journal file when it resets the file; default: "
        "64M.",
        "With a small limit, the file often has to grow again; with a large one, it occupies "
        "more disk space.",
        NO_EFFECT,
    ),
    Option(
        "temp_store",
        "temp_store",
        "PLACE",
        OneOf("default", "file", "memory"),
        "memory",
        "Where SQLite sorts rows and keeps temporary tables.",
        "With `file`, large sorts access the disk; a mount does no large sorts. fsck accepts no "
        "mount options and always keeps its large tables in files.",
        NO_EFFECT,
    ),
    Option(
        "cachedir",
        "cachedir",
        "DIR",
        path_value,
        "",
        "Directory in which this host keeps its state, one folder per filesystem: database, "
        "cache, control socket, log. Default: `$XDG_STATE_HOME/s3fs-meta`, else "
        "`~/.local/state/s3fs-meta`; for root `/var/lib/s3fs-meta`.",
        "The directory needs disk space for `cachesize` and the metadata.",
        "The directory has the only copy of data that is not uploaded yet. A mount with another "
        "directory starts from the state in the bucket.",
    ),
    Option(
        "compress",
        "compression",
        "METHOD",
        text_value,
        "zstd-1",
        "How new blocks are compressed: `none`, or `zstd-1` (fast) to `zstd-19` (small).",
        "Higher levels need more CPU time for uploads; the speed of reads is about the same at "
        "every level. Blocks that do not shrink are stored uncompressed.",
        NO_EFFECT,
    ),
    Option(
        "capacity",
        "capacity_bytes",
        "SIZE",
        parse_size,
        "",
        "Maximum size of the filesystem, which `df` shows; writes beyond it fail with ENOSPC. "
        "Deduplicated content and extended attributes count towards it, names and inodes do not. "
        "0 means unlimited; default: the value of the last mount, which the filesystem stores.",
        "With a capacity, a mount adds up the sizes of all xattrs: 0.25 s per million xattrs.",
        NO_EFFECT,
    ),
    Option(
        "ro",
        "read_only",
        "",
        flag(value=True),
        "",
        "Mount read-only: the mount neither accepts changes nor takes the lease.",
        "Changes by another host appear at the next mount, or after a few seconds with `follow`.",
        NO_EFFECT,
    ),
    Option(
        "follow",
        "follow",
        "",
        flag(value=True),
        "",
        "With `ro`: show the changes of the writer on another host after a few seconds. Any number "
        "of hosts can follow. `s3fs-meta promote` makes a follower the writer. Needs "
        "`journal_mode=wal`.",
        "The mount sends one small request every `poll=` seconds. The mount table shows `rw`, but "
        "writes fail with EROFS.",
        NO_EFFECT,
    ),
    Option(
        "rw", "read_only", "", flag(value=False), "rw", "Mount for writing.", NOTHING, NO_EFFECT
    ),
    Option(
        "allow_other",
        "allow_other",
        "",
        flag(value=True),
        "",
        "Allow access by other users, according to the permission bits. Without the option only "
        "the user who mounted has access; even root has none. Users other than root need "
        "`user_allow_other` in `/etc/fuse.conf`.",
        "Requests from other users add load to the daemon.",
        NO_EFFECT,
    ),
    Option(
        "noatime",
        "access_time",
        "",
        flag(AccessTime.NEVER),
        "",
        "Reading never writes an access time.",
        "Programs that rely on access times (old mail readers, tmp cleaners) can misbehave.",
        NO_EFFECT,
    ),
    Option(
        "nodiratime",
        "directory_times",
        "",
        flag(value=False),
        "",
        "Listing a directory never writes its access time; `relatime`, `noatime` and "
        "`strictatime` then apply to files only.",
        "Programs that rely on access times of directories can misbehave.",
        NO_EFFECT,
    ),
    Option(
        "diratime",
        "directory_times",
        "",
        flag(value=True),
        "diratime",
        "Listing a directory writes its access time under the same rules as reading a file.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "relatime",
        "access_time",
        "",
        flag(AccessTime.RELATIVE),
        "relatime",
        "Reading writes the access time if it is a day old, or not later than the last change.",
        "Some reads change metadata, as writes do.",
        "A crash can lose the access times of the last `commit=` seconds.",
    ),
    Option(
        "atime",
        "access_time",
        "",
        flag(AccessTime.RELATIVE),
        "relatime",
        "Has the same effect as `relatime`, and overrides an earlier `noatime`.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "strictatime",
        "access_time",
        "",
        flag(AccessTime.ALWAYS),
        "",
        "Every read that reaches the daemon writes the access time; a read that the kernel "
        "answers from its page cache does not.",
        "Every read that reaches the daemon changes metadata, as a write does.",
        "A crash can lose the access times of the last `commit=` seconds.",
    ),
    Option(
        "nodev",
        "nodev",
        "",
        flag(value=True),
        "nodev",
        "Device files do not work. The option is always on for users other than root. For root "
        "with `mount -t` or `/etc/fstab` the default is `dev`, as for other filesystems.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "dev",
        "nodev",
        "",
        flag(value=False),
        "",
        "Device files work; only root may use the option.",
        "Root on any host that mounts the filesystem for writing can create a device file on this "
        "host, and so can anyone who can write to the bucket of a plain filesystem.",
        NO_EFFECT,
    ),
    Option(
        "nosuid",
        "nosuid",
        "",
        flag(value=True),
        "nosuid",
        "Set-user-ID bits and file capabilities have no effect. The option is always on for "
        "users other than root. For root with `mount -t` or `/etc/fstab` the default is `suid`, "
        "as for other filesystems.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "suid",
        "nosuid",
        "",
        flag(value=False),
        "",
        "Set-user-ID bits and file capabilities work; only root may use the option.",
        "Root on any host that mounts the filesystem for writing can make a user of this host "
        "root, and so can anyone who can write to the bucket of a plain filesystem.",
        NO_EFFECT,
    ),
    Option(
        "noexec",
        "noexec",
        "",
        flag(value=True),
        "",
        "Programs on the filesystem cannot be run.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "exec",
        "noexec",
        "",
        flag(value=False),
        "exec",
        "Programs on the filesystem can be run.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "at",
        "at",
        "TIME",
        point_in_time,
        "",
        "Mount an older state of the filesystem, read-only: a time in ISO 8601 (local unless it "
        "has a zone; up to nanoseconds), or an age such as `10m` or `1h30m ago`.",
        "The mount downloads the metadata into its own state directory, which the unmount removes. "
        "The present state and other points in time can be mounted on other mountpoints at the "
        "same time.",
        NO_EFFECT,
    ),
    Option(
        "txg",
        "at",
        "NUMBER",
        point_of_txg,
        "",
        "Mount the state after a transaction group, read-only. `s3fs-meta log` lists the numbers of"
        " transaction groups.",
        "The costs are the same as with the option `at`.",
        NO_EFFECT,
    ),
    Option(
        "snapdir",
        "snapdir",
        "NAME",
        entry_name,
        ".snapshots",
        "Name of a directory in the root directory that shows past states of the filesystem: "
        "`.snapshots/2026-05-09T14:30`, `.snapshots/1h-ago`, `.snapshots/txg=42`. No listing shows "
        "the directory, and a file of the same name hides it.",
        "Each point in time that programs use is restored into a temporary database. At most four "
        "such databases are kept, each for ten minutes after its last use.",
        NO_EFFECT,
    ),
    Option(
        "at_least",
        "at_least",
        "TXG:HASH",
        mark,
        "",
        "Refuse to mount a bucket that is older than TXG:HASH, the chain mark that `status --all` "
        "shows, or that has another history, such as an old copy of the bucket. If txg TXG is no "
        "longer retained, the mount prints a notice and does not compare the hash. With `at`, the "
        "check applies to the chain that contains the point in time.",
        "The check takes up to three requests.",
        NO_EFFECT,
    ),
    Option(
        "uid",
        "uid",
        "UID",
        integer(0, ID_MAX),
        "",
        "Show every file as owned by this user; default: the stored owner.",
        "The stored owners are not shown, but chown still changes them.",
        NO_EFFECT,
    ),
    Option(
        "gid",
        "gid",
        "GID",
        integer(0, ID_MAX),
        "",
        "Show every file as owned by this group; default: the stored group.",
        "The stored groups are not shown, but chgrp still changes them.",
        NO_EFFECT,
    ),
    Option(
        "umask",
        "umask",
        "MASK",
        mode_mask,
        "",
        "Show every file with permission bits 0777 minus this octal mask; default: the stored "
        "bits.",
        "The stored permission bits are not shown, but chmod still changes them.",
        NO_EFFECT,
    ),
    Option(
        "request_loop",
        "request_loop",
        "WAY",
        OneOf("direct", "scheduled"),
        "",
        "The option has no effect. It is still accepted, so that existing fstab(5) lines work, but "
        "the mount prints a warning. Every mount handles kernel requests as with `direct`.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "extension",
        "extension",
        "WHETHER",
        OneOf("used", "off"),
        "",
        "The option has no effect. It is still accepted, so that existing fstab(5) lines work, but "
        "the mount prints a warning. Every mount uses the compiled extension.",
        NOTHING,
        NO_EFFECT,
    ),
    *TRANSFER_OPTIONS,
    Option(
        "metrics",
        "metrics",
        "[ADDR:]PORT",
        listen_address,
        "",
        "Serve the statistics of the mount to Prometheus over HTTP at `/metrics`, on 127.0.0.1 "
        "unless an IP address is given. Each mount needs its own port.",
        "A request takes a few ms. Every user on this host can read the statistics, and so can "
        "every host that reaches the port, unless the address is a loopback address.",
        NO_EFFECT,
    ),
    Option(
        "endpoint_url",
        "endpoint_url",
        "URL",
        text_value,
        "",
        "URL of an S3 server other than AWS; default: `$AWS_ENDPOINT_URL`, else AWS.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "region",
        "region",
        "NAME",
        text_value,
        "",
        "Region of the bucket; default: the region in the AWS configuration.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "profile",
        "profile",
        "NAME",
        text_value,
        "",
        "Profile in the AWS configuration; default: `$AWS_PROFILE`.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "passphrase_file",
        "passphrase_file",
        "FILE",
        path_value,
        "",
        "File whose first line is the passphrase; default: `$S3FS_META_PASSPHRASE`, else a prompt "
        "on the terminal.",
        "Anyone who can read the passphrase file can read the filesystem.",
        NO_EFFECT,
    ),
    Option(
        "unsafe_single_writer",
        "unsafe_single_writer",
        "",
        flag(value=True),
        "",
        "Mount a filesystem whose store ignores conditional writes.",
        "The lease cannot keep a second host from writing.",
        "Two hosts that write at the same time destroy the filesystem.",
    ),
    Option(
        "takeover",
        "force_takeover",
        "",
        flag(value=True),
        "",
        "Take the lease from the host that holds it; the mount on that host becomes read-only.",
        "Changes that the other host has not uploaded stay on that host.",
        NO_EFFECT,
    ),
)

BY_WORD: Final[Mapping[str, Option]] = {option.word: option for option in OPTIONS}


def default_of(field: str) -> Any:
    """Return the default value of a MountOptions field.

    A field may have several rows; at most one of them contains the default. If none does, the
    default of a flag is the opposite of its value, and the default of any other field is None.
    """
    rows = [option for option in OPTIONS if option.field == field]
    for option in rows:
        if option.default:
            return option.parse(option.word, option.default)
    return None if rows[0].takes else not rows[0].parse(rows[0].word, "")
