"""The table of mount options (``-o``): one row for each option, with its complete documentation.

Owns: names, defaults, effects and costs; docs/reference/settings.md is generated from them.
Does not know: how values are used. ``transfer_options`` has the rows about cache and bucket.
Source: mount(8), "FILESYSTEM-INDEPENDENT MOUNT OPTIONS"; fstab(5).
"""

from collections.abc import Mapping
from typing import Any, Final

from s3fs_meta.model import AccessTime
from s3fs_meta.option_row import NO_EFFECT, NOTHING, Option
from s3fs_meta.option_syntax import (
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
from s3fs_meta.transfer_options import TRANSFER_OPTIONS

ID_MAX: Final = (1 << 32) - 2  # (uid_t) -1 means "unchanged" for chown(2)

# Options that are accepted for one release, with a warning.
WITHOUT_EFFECT: Final = ("request_loop", "extension")

OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "journal_mode",
        "journal_mode",
        "MODE",
        OneOf("wal", "delete", "truncate", "persist", "memory", "off"),
        "wal",
        "How SQLite keeps the metadata database consistent.",
        "Under `wal`, reads, checkpoints and images run beside writes. Under the other modes an "
        "image stops the mount while the database is copied, and a commit costs one or two fsyncs.",
        "`wal`, `delete`, `truncate`, `persist`: nothing that was fsynced is lost. `memory`, "
        "`off`: after any crash the local state is quarantined and the state in the bucket "
        "restored; under `off` any error of SQLite turns the mount read-only.",
    ),
    Option(
        "synchronous",
        "synchronous",
        "LEVEL",
        OneOf("off", "normal", "full", "extra"),
        "normal",
        "How often SQLite syncs on its own. At every level but `off`, `fsync` makes a file durable.",
        "`full` and `extra` sync at every group commit, 20 to 200 times a second on a disk that "
        "takes 5 ms; `normal` and `off` do not.",
        "`normal` and above: power loss costs at most `commit=` seconds of changes that were not "
        "fsynced. `off`: after power loss the local state is quarantined and the state in the "
        "bucket restored; even fsynced changes may be lost.",
    ),
    Option(
        "page_size",
        "page_size",
        "BYTES",
        page_size,
        "",
        "Page size of the database; default: unchanged. Another size converts the database before "
        "the mount begins.",
        "With larger pages sequential reads are faster, and each change writes more. A conversion "
        "needs twice the space of the database, time in proportion to its size, and the upload of "
        "a complete new image.",
        "A crash during the conversion leaves the old size.",
    ),
    Option(
        "cache_size",
        "cache_size",
        "PAGES|SIZE",
        page_cache,
        "",
        "SQLite's page cache: a number of pages, a negative number of KiB, or a size such as "
        "`256M`; default: a share of the machine's memory.",
        "Memory of the daemon. Too small a cache makes metadata operations read the disk.",
        NO_EFFECT,
    ),
    Option(
        "mmap_size",
        "mmap_size",
        "SIZE",
        parse_size,
        "0",
        "How much of the database SQLite reads through a memory map.",
        "Address space; an I/O error of the disk then kills the daemon instead of giving EIO.",
        NO_EFFECT,
    ),
    Option(
        "wal_autocheckpoint",
        "wal_autocheckpoint",
        "PAGES",
        integer(0, 1 << 31),
        "0",
        "Number of pages in the WAL from which a commit checkpoints it; with 0 the mount "
        "checkpoints in the background.",
        "Above 0 a commit sometimes waits for a checkpoint, tens of milliseconds in which no "
        "request is answered.",
        NO_EFFECT,
    ),
    Option(
        "journal_size_limit",
        "journal_size_limit_bytes",
        "SIZE",
        parse_size,
        "",
        "Size to which a WAL or journal file is cut back when it is reset; default: 64M.",
        "A small limit grows the file repeatedly; a large one keeps disk space.",
        NO_EFFECT,
    ),
    Option(
        "temp_store",
        "temp_store",
        "PLACE",
        OneOf("default", "file", "memory"),
        "memory",
        "Where SQLite sorts and keeps temporary tables.",
        "`file` needs disk accesses for large sorts, and a mount does no large sorts. fsck takes "
        "no mount options and always keeps its large tables in files.",
        NO_EFFECT,
    ),
    Option(
        "cachedir",
        "cachedir",
        "DIR",
        path_value,
        "",
        "Directory under which this host keeps its state, one folder per filesystem: database, "
        "cache, control socket, log. Default: `$XDG_STATE_HOME/s3fs-meta`, else "
        "`~/.local/state/s3fs-meta`; `/var/lib/s3fs-meta` for root.",
        "Disk space: `cachesize` plus the metadata.",
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
        "Processor time of the upload; reads decompress at about the same speed at every level. "
        "Blocks that do not shrink are stored as they are.",
        NO_EFFECT,
    ),
    Option(
        "capacity",
        "capacity_bytes",
        "SIZE",
        parse_size,
        "",
        "Maximum size of the filesystem, which `df` shows; writing more gives ENOSPC. Content "
        "counts after deduplication, extended attributes count, names and inodes do not. 0: "
        "unlimited; default: the value of the last mount, which the filesystem stores.",
        "Each mount sums up the extended attributes, which takes 0.25 s for a million of them.",
        NO_EFFECT,
    ),
    Option(
        "ro",
        "read_only",
        "",
        flag(value=True),
        "",
        "Mount read-only: no change is accepted and the lease is not touched.",
        "Changes by another host appear at the next mount, or with `follow` after seconds.",
        NO_EFFECT,
    ),
    Option(
        "follow",
        "follow",
        "",
        flag(value=True),
        "",
        "With `ro`: show the changes of the writer on another host, a few seconds later; on any "
        "number of hosts. `s3fs-meta promote` makes such a mount the writer. Needs "
        "`journal_mode=wal`.",
        "One small request every `poll=` seconds. The mount table says `rw`; writing is refused "
        "with EROFS.",
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
        "Allow access by other users, as permission bits specify; without the option, only the "
        "user who mounted has access, and root has none. Users other than root need "
        "`user_allow_other` in `/etc/fuse.conf`.",
        "Other users can put load on the daemon.",
        NO_EFFECT,
    ),
    Option(
        "noatime",
        "access_time",
        "",
        flag(AccessTime.NEVER),
        "",
        "Reading never writes an access time.",
        "Programs that read access times (old mail readers, tmp cleaners) are misled.",
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
        "As `noatime`, for directories.",
        NO_EFFECT,
    ),
    Option(
        "diratime",
        "directory_times",
        "",
        flag(value=True),
        "diratime",
        "Listing a directory writes its access time, as the options for files specify.",
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
        "A metadata change on some reads.",
        "Access times of the last `commit=` seconds.",
    ),
    Option(
        "atime",
        "access_time",
        "",
        flag(AccessTime.RELATIVE),
        "relatime",
        "As `relatime`, the default; overrides an earlier `noatime`.",
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
        "A metadata change on every such read.",
        "Access times of the last `commit=` seconds.",
    ),
    Option(
        "nodev",
        "nodev",
        "",
        flag(value=True),
        "nodev",
        "Device files do not work; always on for users other than root. For root with `mount -t` "
        "or `/etc/fstab` the default is `dev`, as for other filesystems.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "dev",
        "nodev",
        "",
        flag(value=False),
        "",
        "Device files work; root only.",
        "Anyone who can write the bucket can plant a device.",
        NO_EFFECT,
    ),
    Option(
        "nosuid",
        "nosuid",
        "",
        flag(value=True),
        "nosuid",
        "Set-user-ID bits and file capabilities have no effect; always on for users other than "
        "root. For root with `mount -t` or `/etc/fstab` the default is `suid`, as for other "
        "filesystems.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "suid",
        "nosuid",
        "",
        flag(value=False),
        "",
        "Set-user-ID bits and file capabilities work; root only.",
        "Anyone who can write the bucket can become root.",
        NO_EFFECT,
    ),
    Option(
        "noexec",
        "noexec",
        "",
        flag(value=True),
        "",
        "Programs cannot be run.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "exec",
        "noexec",
        "",
        flag(value=False),
        "exec",
        "Programs can be run.",
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
        "A state directory of its own, which is downloaded at the mount and removed at unmount. "
        "The present state and other points in time can be mounted at the same time, on other "
        "mountpoints.",
        NO_EFFECT,
    ),
    Option(
        "txg",
        "at",
        "NUMBER",
        point_of_txg,
        "",
        "Mount the state after a transaction group, read-only; `s3fs-meta log` lists the numbers.",
        "As `at`.",
        NO_EFFECT,
    ),
    Option(
        "snapdir",
        "snapdir",
        "NAME",
        entry_name,
        ".snapshots",
        "Name in the root directory under which past points in time are directories: "
        "`.snapshots/2026-05-09T14:30`, `.snapshots/1h-ago`, `.snapshots/txg=42`. No listing shows "
        "it; a file that has the name already hides it.",
        "Each point in time that programs use is restored into a temporary database; four are kept, "
        "for ten minutes after their last use.",
        NO_EFFECT,
    ),
    Option(
        "at_least",
        "at_least",
        "TXG:HASH",
        mark,
        "",
        "Refuse a bucket that is older than the state that an earlier mount printed, or that has "
        "another history since: the bucket may have been replaced by an old copy. The mount "
        "compares the state that it serves; with `at`, the chain that contains the point in time.",
        "Up to three requests.",
        NO_EFFECT,
    ),
    Option(
        "uid",
        "uid",
        "UID",
        integer(0, ID_MAX),
        "",
        "Show every file as owned by this user; default: the owner that is stored.",
        "Stored owners are not visible; chown still changes them.",
        NO_EFFECT,
    ),
    Option(
        "gid",
        "gid",
        "GID",
        integer(0, ID_MAX),
        "",
        "Show every file as owned by this group; default: the group that is stored.",
        "Stored groups are not visible; chgrp still changes them.",
        NO_EFFECT,
    ),
    Option(
        "umask",
        "umask",
        "MASK",
        mode_mask,
        "",
        "Show every file with permission bits 0777 minus this octal mask; default: the bits that "
        "are stored.",
        "Stored bits are not visible; chmod still changes them.",
        NO_EFFECT,
    ),
    Option(
        "request_loop",
        "request_loop",
        "WAY",
        OneOf("direct", "scheduled"),
        "",
        "Accepted for one release so that lines of fstab(5) still mount; the mount prints a "
        "warning. Requests of the kernel are always taken as under `direct`.",
        NOTHING,
        NO_EFFECT,
    ),
    Option(
        "extension",
        "extension",
        "WHETHER",
        OneOf("used", "off"),
        "",
        "Accepted for one release so that lines of fstab(5) still mount; the mount prints a "
        "warning. Every mount uses the compiled extension.",
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
        "Serve the figures over HTTP at `/metrics`, for Prometheus; on 127.0.0.1 unless an IP "
        "address is given. Each mount needs a port of its own.",
        "A few ms per request. Every user of this host can read the figures, and with another "
        "address than loopback every host that reaches the port.",
        NO_EFFECT,
    ),
    Option(
        "endpoint_url",
        "endpoint_url",
        "URL",
        text_value,
        "",
        "S3 server other than AWS. Default: `$AWS_ENDPOINT_URL`, else AWS.",
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
        "Profile of the AWS configuration files; default: `$AWS_PROFILE`.",
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
        "Anyone who reads the file can read the filesystem.",
        NO_EFFECT,
    ),
    Option(
        "unsafe_single_writer",
        "unsafe_single_writer",
        "",
        flag(value=True),
        "",
        "Mount on a store that ignores conditional writes.",
        "A second writer is not prevented.",
        "Two hosts that write at once destroy the filesystem.",
    ),
    Option(
        "takeover",
        "force_takeover",
        "",
        flag(value=True),
        "",
        "Take the lease from the host that holds it; its mount turns read-only.",
        "Changes that the other host had not uploaded stay on that host.",
        NO_EFFECT,
    ),
)

BY_WORD: Final[Mapping[str, Option]] = {option.word: option for option in OPTIONS}


def default_of(field: str) -> Any:
    """Return the default of a field of MountOptions, from the row with a default.

    Without such a row the default is None; for a flag it is the opposite of the flag's value.
    """
    rows = [option for option in OPTIONS if option.field == field]
    for option in rows:
        if option.default:
            return option.parse(option.word, option.default)
    return None if rows[0].takes else not rows[0].parse(rows[0].word, "")
