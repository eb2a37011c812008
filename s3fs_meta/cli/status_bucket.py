"""The output of ``status URL`` for a filesystem that is not mounted on this host.

Owns: the fields, the texts, and the advice on the next command.
Does not know: how the facts are read (``sync.history.overview``).
"""

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from s3fs_meta.cli import options
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec.lease import Lease
from s3fs_meta.console import output, passphrase_source
from s3fs_meta.counted import counted
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.stores import opened_store, with_options
from s3fs_meta.sync.history import overview
from s3fs_meta.sync.history.overview import Overview
from s3fs_meta.sync.host_state.state_dir import read_holder
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import peek

FREE: Final = "free"  # state of a lease that its last holder has released
HELD: Final = "held"
LOST: Final = "lease lost"

_NS: Final = 1_000_000_000
# An age is printed in its two largest units, such as 3 d 4 h.
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


async def facts(place: Target, access: options.BucketOptions) -> dict[str, Any]:
    """Return the facts about a filesystem, read from the bucket; nothing is written.

    The user is not asked for the passphrase. Without a passphrase, the facts about an encrypted
    filesystem are the names and times of its objects.

    Raises:
        The errors of ``overview.examine``.
    """
    remembered, clock = Remembered(place.state), SystemClock()
    async with opened_store(place.url, access.s3, state=place.state) as store:
        given = access.passphrase_file is not None or passphrase_source.from_environment()
        if not given and (await peek(store, remembered)).encrypted:
            found = await overview.examine_names(store, remembered, clock)
        else:
            found = await overview.examine(store, remembered, access.secret(), clock)
        counted = store.meter.seen().values()
    requests = sum(billed.requests for counts in counted for billed in counts.values())
    return _fields(place, access, found, requests)


def _fields(
    place: Target, access: options.BucketOptions, found: Overview, requests: int
) -> dict[str, Any]:
    superblock, lease, head, newest = found.superblock, found.lease, found.head, found.newest
    ours = lease is not None and lease.holder in read_holder(place.state)[:1]
    here = None if lease is None or ours else _mountpoint(lease, place.url)
    return {
        "url": place.url,
        "mountpoint": None,
        "uuid": superblock.uuid,
        "label": superblock.label,
        "state": LOST if lease is None else FREE if lease.released else HELD,
        "encrypted": superblock.encrypted,
        "block_size_bytes": superblock.block_bytes,
        "page_size_bytes": superblock.page_size,
        "epoch": None if lease is None else lease.epoch,
        "holder": None if lease is None else _holder(lease, here, ours=ours),
        "txg": None if newest is None else newest.txg,
        "created_ns": None if newest is None else newest.time_ns,
        "proven": found.proven,
        "image": None if found.image is None else _image(found),
        "image_txg": None if head is None else head.txg,
        "changelogs_after_image": found.changelogs,
        "reached_txg": found.reached,
        "faults": [with_options(one, place.url, access.s3, place.state) for one in found.faults],
        "requests": requests,
        "next": options.command(*_next(found, here, ours=ours, access=access, url=place.url)),
    }


def _mountpoint(lease: Lease, url: str) -> str | None:
    """Return the mountpoint on this host where the lease's holder has the filesystem, or None.

    The mount may use a different state directory than this command.
    """
    if lease.released or lease.host != socket.gethostname():
        return None
    mounts = (one for one in mount_table.read() if targets.is_mount_of(one, url))
    return next((one.mountpoint for one in mounts if _is_of_holder(one, lease)), None)


def _is_of_holder(mounted: Mounted, lease: Lease) -> bool:
    """Return whether a mount belongs to the lease's holder.

    If the PID of the mount's daemon is unknown, a writable mount counts as the holder's.
    """
    pid = targets.daemon_pid(mounted)
    if pid is not None:
        return pid == lease.pid
    flags = mount_table.flags_here(mounted)
    return flags is not None and "ro" not in flags.filesystem


def _holder(lease: Lease, here: str | None, *, ours: bool) -> dict[str, Any]:
    return {
        "mountpoint": here,
        "host": lease.host,
        "pid": lease.pid,
        "since_ns": lease.since_ns,
        "released": lease.released,
        "this_host": ours,
    }


def _image(found: Overview) -> dict[str, Any]:
    manifest = found.image
    assert manifest is not None, "the caller must have checked this"
    return {
        "txg": manifest.txg,
        "last_ns": manifest.created_ns,
        "database_bytes": manifest.database_bytes,
        "pieces": len(manifest.pieces),
        "inodes": manifest.inodes,
        "file_bytes": manifest.file_bytes,
    }


def _next(
    found: Overview, here: str | None, *, ours: bool, access: options.BucketOptions, url: str
) -> list[str]:
    """Return the arguments of the command that the user should run next."""
    if found.faults:
        return ["fsck", "-n", *access.arguments, url]
    if here is not None:
        return ["status", here]
    assert found.lease is not None, "a lost lease is reported as a fault"
    takeover = [] if found.lease.released or ours else ["--takeover"]
    return ["mount", *takeover, *access.arguments, url, "MOUNTPOINT"]


# --- show the bucket as text -------------------------------------------------------------------


def rows(fields: Mapping[str, Any], complete: Callable[[str], str]) -> dict[str, str]:
    """Return the facts about a bucket as a table of names and values.

    Args:
        fields: the facts, from ``facts``.
        complete: adds the URL and the options to a command in a text; see ``with_options``.
    """
    encrypted = "encrypted" if fields["encrypted"] else "not encrypted"
    found = {
        "filesystem": " ".join(filter(None, (fields["label"], fields["url"], f"({encrypted})"))),
        "newest state": _newest(fields),
        "lease": _lease(fields),
        "last image": _last_image(fields),
    }
    if fields["image"] is not None:
        image = fields["image"]
        size = output.human_bytes(image["file_bytes"])
        found["size"] = f"{counted(image['inodes'], 'inode')}, {size}, as of the last image"
    found["missing"] = complete(_missing(fields))
    found["next"] = fields["next"]
    return found


def _newest(fields: Mapping[str, Any]) -> str:
    if fields["txg"] is None:
        return "unknown"
    text = f"txg {fields['txg']}{_when(fields['created_ns'])}"
    if not fields["proven"]:
        return f"{text}, by the time of its object"
    reached = fields["reached_txg"]
    behind = reached is not None and reached < fields["txg"]
    return f"{text}, but the bucket has changelogs only up to txg {reached}" if behind else text


def _when(time_ns: int | None) -> str:
    if not time_ns:
        return ""
    return f" of {output.human_time(time_ns)}, {age(time.time_ns() - time_ns)}"


def _lease(fields: Mapping[str, Any]) -> str:
    """Return the holder of the lease as text, and the consequence for the user."""
    holder = fields["holder"]
    if holder is None:
        return "missing or damaged"
    if fields["epoch"] == 0:
        return "free; no host has ever mounted the filesystem for writing"
    since = f"{output.human_time(holder['since_ns'])} (process {holder['pid']})"
    if holder["released"]:
        return (
            f"free; host {holder['host']!r}, which mounted it at {since}, has uploaded all changes"
            " and released it"
        )
    if holder["mountpoint"] is not None:
        return f"held by this host since {since}, which has it mounted on {holder['mountpoint']}"
    if holder["this_host"]:
        return (
            f"held by this host since {since}, not released: it is mounted in another container,"
            " or a mount was killed; in the second case the next mount here uploads the rest"
        )
    return (
        f"held by host {holder['host']!r} since {since}, not released: it is still mounted there,"
        " or was not unmounted; if that machine is lost, mount --takeover continues here without"
        " the changes that exist only on its disk"
    )


def _last_image(fields: Mapping[str, Any]) -> str:
    if fields["image_txg"] is None:
        return "unknown"
    image, count = fields["image"], fields["changelogs_after_image"]
    when = "" if image is None else _when(image["last_ns"])
    return f"txg {fields['image_txg']}{when}; {counted(count, 'changelog')} after it"


def _missing(fields: Mapping[str, Any]) -> str:
    if fields["faults"]:
        return "; ".join(fields["faults"])
    examined = counted(fields["requests"], "request")
    if not fields["proven"]:
        return (
            f"no name of an object ({examined}); give the passphrase with {passphrase_source.INSTEAD}"
            " to examine contents"
        )
    return (
        f"nothing of the last image, and no changelog after it ({examined}); s3fs-meta fsck -n reads"
        " every changelog, and examines packs"
    )


def age(time_ns: int) -> str:
    """Return an age as text, in its two largest units."""
    seconds = time_ns // _NS
    if seconds < 0:
        return "in the future by this host's clock"
    arguments = []
    for unit_s, unit in _UNITS:
        count, seconds = divmod(seconds, unit_s)
        if count:
            arguments.append(f"{count} {unit}")
    return f"{' '.join(arguments[:2]) or 'less than a second'} ago"
