"""The plan of a mount, which is checked before anything is changed.

Owns: converting mount options to settings of other modules, refusing options that cannot work, and
warnings about risky settings. Does not know: how a plan is carried out (``service``).
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from s3fs_meta.codec.compression import Compressor
from s3fs_meta.console import passphrase_source
from s3fs_meta.errors import SettingsError, UsageError
from s3fs_meta.fuse.convert import Overrides
from s3fs_meta.fuse.kernel_session import FuseOptions
from s3fs_meta.meta.db.local_disk import refuse_wal_on_network
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import LOCK_WAIT_S
from s3fs_meta.mount.stores import require_answers
from s3fs_meta.objects import urls
from s3fs_meta.objects.urls import LocalAddress, S3Options
from s3fs_meta.options.option_table import BY_WORD, WITHOUT_EFFECT
from s3fs_meta.options.settings import (
    KernelOptions,
    MountOptions,
    SqliteOptions,
    check_together,
    option_texts,
    parse_mount_options,
)
from s3fs_meta.sync.volume import OpenOptions

# Mount options that are also options of the mount command.
_FLAGS: Final = ("endpoint_url", "region", "profile", "cachedir", "passphrase_file")
# Mount options to omit when a message suggests a command for the next mount.
_ONCE: Final = frozenset({"force_takeover", "at_least", *WITHOUT_EFFECT})

_VOLATILE: Final = (
    "journal_mode={}: after a crash the local state is quarantined and the state in the bucket "
    "restored; fsync does not make changes durable on this host"
)
_UNSYNCED: Final = "synchronous=off: power loss may lose all local changes, even fsynced ones"
_ABANDONED: Final = (
    "the mount option {}={} no longer has an effect, and the next release refuses it; remove it"
)


@dataclass(frozen=True, slots=True)
class MountPlan:
    """The settings of one mount, separated by the component that uses them."""

    place: Target
    mountpoint: Path  # absolute path of the mountpoint
    options: MountOptions
    s3: S3Options
    open: OpenOptions
    fuse: FuseOptions
    overrides: Overrides
    warnings: tuple[str, ...]

    @property
    def command(self) -> str:
        """Return a shell command that mounts the filesystem again with the same options."""
        return mount_command(self.place.url, str(self.mountpoint), self.options)


def make_plan(url: str, mountpoint: Path, options: MountOptions) -> MountPlan:
    """Check the options, and return the plan of a mount.

    Raises:
        UsageError: an option, the URL or the mountpoint is unusable; nothing was changed.
        SettingsError: the state directory cannot be used; nothing was changed.
        SilentDaemonError: the mountpoint or the bucket is in a mount whose daemon does not answer.
    """
    s3 = S3Options(options.endpoint_url, options.region, options.profile)
    ineffective = urls.without_effect(s3, url)
    _check_mountpoint(mountpoint)
    _check_privileges(options)
    Compressor.for_name(options.compression)
    said, options = options, _with_what_follows(options)
    path = targets.resolve(mountpoint)
    present = targets.of_url(url, options.cachedir)
    place = present if options.at is None else targets.of_snapshot(present, path)
    pragmas = pragmas_of(options)
    pragmas.validate()
    if pragmas.is_wal:
        _check_disk_of(place)
    _check_own_files(path, present)
    return MountPlan(
        place=place,
        mountpoint=Path(path),
        options=_absolute(options),
        s3=urls.options_of(url, s3),
        open=OpenOptions(
            pragmas=pragmas,
            read_only=options.read_only,
            follow=options.follow,
            force_takeover=options.force_takeover,
            unsafe_single_writer=options.unsafe_single_writer,
            lock_wait_s=LOCK_WAIT_S,
            at_least=options.at_least,
        ),
        fuse=replace(
            FuseOptions(source=url, **_slice(options, KernelOptions)),
            # A follower is writable for the kernel, because it may be promoted.
            read_only=options.read_only and not options.follow,
        ),
        overrides=Overrides(options.uid, options.gid, options.umask),
        warnings=tuple(
            filter(
                None,
                (
                    ineffective,
                    *_without_effect(options),
                    _hidden_entries(path),
                    passphrase_source.readable_by_others(options.passphrase_file),
                    _open_metrics(options),
                    _weak_durability(pragmas) if options.at is None else _snapshot_warning(said),
                ),
            )
        ),
    )


def mount_command(url: str, mountpoint: str, options: MountOptions) -> str:
    """Return a shell command that mounts a filesystem with the given options.

    The command omits takeover and at_least, which apply to a single mount only.
    """
    flags: list[str] = []
    for field in _FLAGS:
        value = getattr(options, field)
        if value is not None:
            flags += [f"--{field.replace('_', '-')}", str(value)]
    option_list = option_texts(options, {*_FLAGS, *_ONCE})
    joined = ["-o", ",".join(option_list)] if option_list else []
    return shlex.join(("s3fs-meta", "mount", *flags, *joined, url, mountpoint))


def _with_what_follows(options: MountOptions) -> MountOptions:
    """Return the options including implied ones: ``at`` implies ``ro``."""
    return options if options.at is None else replace(options, read_only=True)


def _snapshot_warning(said: MountOptions) -> str:
    return "" if said.read_only else "a point in time is mounted read-only"


def merged_options(texts: Sequence[str], flags: MountOptions) -> MountOptions:
    """Return the ``-o`` options, overridden by command options such as --cachedir.

    Raises:
        UsageError: an option is unknown, has a wrong value, or contradicts another option.
    """
    said = parse_mount_options(texts)
    merged = replace(
        said,
        cachedir=flags.cachedir or said.cachedir,
        endpoint_url=flags.endpoint_url or said.endpoint_url,
        region=flags.region or said.region,
        profile=flags.profile or said.profile,
        passphrase_file=flags.passphrase_file or said.passphrase_file,
        unsafe_single_writer=flags.unsafe_single_writer or said.unsafe_single_writer,
        force_takeover=flags.force_takeover or said.force_takeover,
        at_least=flags.at_least or said.at_least,
    )
    check_together(merged)
    return merged


def _slice(options: MountOptions, kind: type[SqliteOptions | KernelOptions]) -> dict[str, Any]:
    """Return the options that are fields of *kind*, the class of one component's settings."""
    return {one.name: getattr(options, one.name) for one in fields(kind)}


def pragmas_of(options: MountOptions) -> Pragmas:
    """Return SQLite's settings, with defaults for options that were not given."""
    pragmas = Pragmas(**_slice(options, SqliteOptions))
    if options.page_size is not None:
        pragmas = replace(pragmas, page_size=options.page_size)
    if options.journal_size_limit_bytes is not None:
        pragmas = replace(pragmas, journal_size_limit=options.journal_size_limit_bytes)
    return pragmas


def _absolute(options: MountOptions) -> MountOptions:
    """Return the options with absolute paths, because a daemon changes its working directory."""
    secret, cachedir = options.passphrase_file, options.cachedir
    return replace(
        options,
        passphrase_file=None if secret is None else Path(os.path.abspath(secret)),
        cachedir=None if cachedir is None else Path(os.path.abspath(cachedir)),
    )


def _check_mountpoint(mountpoint: Path) -> None:
    """Raise UsageError for an unusable mountpoint; a killed mount or an automounter is accepted.

    An automounter's directory is not accessed, because the access would wait for this mount.

    Raises:
        UsageError: the mountpoint is not a directory, or another filesystem is mounted on it.
    """
    path = targets.resolve(mountpoint)
    if mount_table.is_automount(path):
        return
    if any(one.mountpoint == path for one in mount_table.read()):
        if mount_table.find(path) is None:
            raise UsageError(f"another filesystem is mounted on {path!r}")
        return  # the daemon of an existing mount may hang, so the caller queries it later
    if not os.path.lexists(path):
        raise UsageError(
            f"mountpoint {path!r} does not exist; create it, or use --mkdir, or in fstab "
            "X-mount.mkdir"
        )
    if not os.path.isdir(path):
        raise UsageError(f"mountpoint {path!r} is not a directory")


def _hidden_entries(path: str) -> str:
    """Return a warning if the mount hides files in its mountpoint, else ""."""
    if mount_table.is_automount(path) or mount_table.find(path) is not None:
        return ""  # no warning: an existing mount already hides the entries
    try:
        with os.scandir(path) as entries:
            is_empty = next(entries, None) is None
    except PermissionError:
        return ""
    if is_empty:
        return ""
    return f"mountpoint {path!r} is not empty: its entries are hidden until the unmount"


def _open_metrics(options: MountOptions) -> str:
    """Return a warning if other hosts can read the statistics of the mount, else ""."""
    if options.metrics is None or options.metrics.is_loopback:
        return ""
    return (
        f"metrics={options.metrics}: every host that reaches this port can read the statistics,"
        " without a password; restrict it with a firewall"
    )


def _check_own_files(mountpoint: str, place: Target) -> None:
    """Raise UsageError if the mount could hide files that its daemon uses.

    To read such a file, the daemon would have to answer its own request, and would hang forever.
    The daemon also removes empty directories in these places, even one that is the mountpoint.

    Raises:
        UsageError: the mountpoint is, contains, or is inside the state directory or the bucket.
        SilentDaemonError: the bucket is in a mount whose daemon does not answer.
    """
    require_answers(place.url)
    address = urls.parse(place.url)
    used = {"the state directory": (place.state, "; choose another with --cachedir")}
    if isinstance(address, LocalAddress):
        used["the directory of the bucket"] = (address.root, "; choose another mountpoint")
    for what, (path, advice) in used.items():
        used_path = os.path.realpath(path)
        common = os.path.commonpath([mountpoint, used_path])
        if common == mountpoint:
            raise UsageError(f"mountpoint {mountpoint!r} would hide {what}, {str(path)!r}{advice}")
        if common == used_path:
            raise UsageError(
                f"mountpoint {mountpoint!r} is inside {what}, {str(path)!r}; choose another"
                " mountpoint"
            )


def _check_disk_of(place: Target) -> None:
    """Raise UsageError if a write-ahead log is unsafe on the filesystem of the state directory.

    Raises:
        UsageError: a write-ahead log is unsafe on the filesystem.
        SettingsError: the filesystem cannot be examined.
    """
    try:
        refuse_wal_on_network(place.state)
    except OSError as exc:
        raise SettingsError(
            f"cannot use the state directory {str(place.state)!r}: {exc.strerror}; choose another"
            " with --cachedir"
        ) from exc


def _check_privileges(options: MountOptions) -> None:
    if os.geteuid() == 0:
        return
    for word, asked_for in (("dev", not options.nodev), ("suid", not options.nosuid)):
        if asked_for:
            raise UsageError(f"only root may use the mount option {word!r}")


def _without_effect(options: MountOptions) -> tuple[str, ...]:
    """Return a warning for each option that no longer has an effect."""
    given = ((word, getattr(options, BY_WORD[word].field)) for word in WITHOUT_EFFECT)
    return tuple(_ABANDONED.format(word, value) for word, value in given if value is not None)


def _weak_durability(pragmas: Pragmas) -> str:
    """Return a warning if the settings remove a guarantee of durability, else ""."""
    if pragmas.journal_mode in {"off", "memory"}:
        return _VOLATILE.format(pragmas.journal_mode)
    if pragmas.synchronous == "off":
        return _UNSYNCED
    assert pragmas.survives_power_loss, "every setting that removes a guarantee must have a warning"
    return ""
