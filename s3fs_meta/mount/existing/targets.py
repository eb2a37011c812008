"""The mapping of a user's URL or mountpoint to the filesystem and its local state.

Owns: the mapping, and a note about each running mount. The note lets a command find a mount that
has another ``cachedir``, and an unmounted filesystem whose daemon still uploads.

    <runtime directory>/<pid>    JSON: url, state directory, mountpoint, device,
                                 start time of the process, outcome of the mount after its end,
                                 and the command for mounting again

Each PID namespace except the machine's first uses a subfolder ``namespace-<inode>``. Containers may
share /run, but not PIDs: in one folder, a running mount of another container would look killed.
Source: pid_namespaces(7), namespaces(7).

The last ENDED_NOTES_MAX notes of ended mounts are kept for an hour, for an ``umount`` command that
starts just after a mount has ended.
The note of a killed daemon is kept while its mount may exist; later, a command that reads all notes
removes it. A mount also removes incomplete notes, and the subfolders of PID namespaces that have
ended.
"""

import contextlib
import itertools
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from s3fs_meta.control import plain_call
from s3fs_meta.control.plain_call import PATIENCE, Patience
from s3fs_meta.errors import UsageError
from s3fs_meta.mount.existing import mount_table
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.mount.limits import ENDED_NOTES_MAX, NOTE_BYTES_MAX
from s3fs_meta.mount_errors import NotMountedError, SilentDaemonError
from s3fs_meta.state_paths import (
    default_cachedir,
    locate,
    locate_snapshot_state,
    open_regular,
    read_regular,
    runtime_dir,
)

# State letter in /proc of a zombie: a process that has exited but was not waited for.
_ZOMBIE: Final = b"Z"
_PID: Final = re.compile("[0-9]+")
_NEW: Final = ".new"  # suffix of a note that is still being written
_NAMESPACE: Final = "namespace-"
_ENDED_S_MAX: Final = 3600.0  # maximum age of a note about an ended mount
_SCHEMES: Final = frozenset({"s3", "local"})  # schemes of store URLs
# Maximum age of a note that a killed daemon in another mount namespace left.
_ELSEWHERE_S_MAX: Final = 86_400.0
_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC  # constant PROC_PID_INIT_INO of linux/proc_ns.h

# Fields of a note. Another version may have written the note, so each field is checked.
_NOTE: Final[Mapping[str, tuple[type, ...]]] = {
    "url": (str,),
    "state": (str,),
    "mountpoint": (str,),
    "device": (str,),
    "started": (int,),
    "outcome": (dict, type(None)),
}


class Target(NamedTuple):
    """One filesystem with its local state and, if it is or was mounted, its mount."""

    url: str
    state: Path  # path of the state directory, which may not exist
    mountpoint: str | None = None
    mounted: bool = False  # True if the mount table has the mount; the daemon may run longer
    outcome: dict[str, Any] | None = None  # outcome of an ended mount; None for a running mount
    note: Path | None = None  # path of the daemon's note; None if it could not be written
    started: int = 0  # start time of the daemon as recorded in its note
    again: str = ""  # command that mounts the filesystem again; "" if unknown
    # If the daemon has exited: mountpoint of a later mount with the same state directory, else "".
    # The daemon of the later mount answers on the control socket.
    successor: str = ""


def own_cachedir() -> Path:
    """Return the default directory of local state for the current user."""
    return default_cachedir(os.environ, os.geteuid())


def notes_dir() -> Path:
    """Return the directory for notes about mounts in this process's PID namespace."""
    notes, namespace = runtime_dir(os.environ, os.geteuid()), _own_namespace()
    return notes if namespace == _FIRST_PID_NAMESPACE else notes / f"{_NAMESPACE}{namespace}"


def _own_namespace(kind: str = "pid") -> int:
    """Return the number of this process's namespace of a given kind, such as pid or mnt."""
    return os.stat(f"/proc/self/ns/{kind}").st_ino


def of_url(url: str, cachedir: Path | None) -> Target:
    """Return the filesystem and the local state for a URL."""
    return Target(url, locate(url, cachedir or own_cachedir()))


def of_snapshot(place: Target, mountpoint: str) -> Target:
    """Return the target of a mounted point in time; each mountpoint has its own state directory."""
    return place._replace(state=locate_snapshot_state(place.state, mountpoint))


def of_mountpoint(mountpoint: Path, cachedir: Path | None) -> Target:
    """Return the target of a mountpoint, even an unmounted one whose daemon still uploads.

    Raises:
        NotMountedError: no filesystem is mounted on the path, and no note mentions the path.
        SilentDaemonError: the path is inside a mount whose daemon does not answer.
    """
    path = resolve(mountpoint)
    mounted = mount_table.find(path)
    if mounted is None:
        notes = _notes()
        for note in notes:
            if note["mountpoint"] == path:
                return _succeeded(_ending(note), notes)
        reason = given_a_url(str(mountpoint), "a mountpoint") or _given_a_path_below(path)
        raise NotMountedError(path, reason)
    return _of_mounted(mounted, cachedir)


def _of_mounted(mounted: Mounted, cachedir: Path | None) -> Target:
    living = _living_notes()
    found = _best(living, mounted)
    if found is None and (found := _best(_killed_notes(), mounted)) is not None:
        return _succeeded(_with_state(mounted, found, cachedir), living)
    return _with_state(mounted, found, cachedir)


def _succeeded(place: Target, notes: Iterable[Mapping[str, Any]]) -> Target:
    """Return a target with the later mount that uses its state directory, if there is one."""
    later = (
        note["mountpoint"]
        for note in notes
        if note["outcome"] is None
        and note["state"] == str(place.state)
        and note["mountpoint"] != place.mountpoint
    )
    return place._replace(successor=next(later, ""))


def _with_state(mounted: Mounted, found: dict[str, Any] | None, cachedir: Path | None) -> Target:
    """Return the target of a mount from its note, or without a note from its URL."""
    path = mounted.mountpoint
    if found is not None and cachedir is None:
        return _ending(found)._replace(mountpoint=path, mounted=True)
    place = of_url(unquoted(mounted.source), cachedir)
    snapshot = of_snapshot(place, path)
    if snapshot.state.exists():
        # Only a running mount has this state directory, which the unmount removes.
        place = snapshot
    if found is not None and Path(found["state"]) == place.state:
        place = place._replace(again=found["again"])
    return place._replace(mountpoint=path, mounted=True)


def resolve(mountpoint: Path) -> str:
    """Return the path of a mountpoint without symbolic links; do not access its filesystem.

    Raises:
        SilentDaemonError: the path is inside a mount whose daemon does not answer.
    """
    require_answers([mountpoint], at_end=False)
    return mount_table.resolve(mountpoint)


def require_answers(
    paths: Iterable[Path], *, at_end: bool = True, patience: Patience = PATIENCE
) -> None:
    """Check the daemons of the mounts that paths enter, so that access to the paths cannot hang.

    Each daemon is checked once. The check of a running daemon takes a millisecond.

    Args:
        paths: the paths that the caller accesses.
        at_end: False if the caller accesses only the directories above the end of each path.
        patience: the time after which a daemon that does not answer is an error.

    Raises:
        SilentDaemonError: a daemon does not answer.
    """
    checked = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the working directory was removed
            for mounted in mount_table.entered(path, at_end=at_end):
                if mounted not in checked:
                    _require_answer(mounted, patience)
                checked.add(mounted)


def _require_answer(mounted: Mounted, patience: Patience) -> None:
    found = _best(_living_notes(), mounted)
    if found is not None:
        plain_call.require_answer(Path(found["state"]), patience)
        return
    # The daemon of another user is not found by a note, but may serve this user (allow_other).
    if mount_table.is_disconnected_within(mounted.mountpoint, patience.answer_s) is None:
        raise SilentDaemonError(f"of {mounted.mountpoint}", patience.answer_s)


def given_a_url(path: str, wanted: str) -> str:
    """Return an error message if a path looks like a URL, else "".

    ``Path`` removes one of the two slashes after the scheme of a URL.

    Args:
        path: the argument of a command.
        wanted: the kind of argument that the command takes.
    """
    scheme, colon, rest = path.partition(":/")
    if not colon or scheme not in _SCHEMES:
        return ""
    url = f"{scheme}://{'/' if scheme == 'local' else ''}{rest}"
    places = [one.mountpoint for one in mount_table.read() if is_mount_of(one, url)]
    where = f"it is mounted on {', '.join(places)}" if places else "it is not mounted on this host"
    return f"{url} is a URL, and this command takes {wanted}; {where}"


def _given_a_path_below(path: str) -> str:
    """Return an error message if a path is inside a mount of s3fs-meta; "" otherwise."""
    above = [one for one in mount_table.read() if path.startswith(f"{one.mountpoint.rstrip('/')}/")]
    nearest = max(above, key=lambda one: len(one.mountpoint), default=None)
    if nearest is None or nearest.fs_type != mount_table.FS_TYPE:
        return ""
    return f"{path} is not a mountpoint; its filesystem is mounted on {nearest.mountpoint}"


def is_mount_of(mounted: Mounted, url: str) -> bool:
    """Return whether *mounted* is a mount of *url*.

    As in ``state_paths.locate``, slashes at the end of a URL make no difference.
    """
    is_ours = mounted.fs_type == mount_table.FS_TYPE
    return is_ours and unquoted(mounted.source).rstrip("/") == url.rstrip("/")


def of_killed(mounted: Mounted) -> Target | None:
    """Return the target of a killed daemon's mount from its note, or None if no note exists."""
    found = _best(_killed_notes(), mounted)
    return (
        None
        if found is None
        else _ending(found)._replace(mountpoint=mounted.mountpoint, mounted=True)
    )


def mount_command(place: Target) -> str:
    """Return the command that mounts a filesystem as before; unknown options are left out."""
    if place.again:
        return place.again
    return shlex.join(("s3fs-meta", "mount", place.url, place.mountpoint or "MOUNTPOINT"))


def mount_flags(place: Target) -> dict[str, str]:
    """Return the known options, such as ``--region``, with which a filesystem was mounted.

    Options after ``-o`` are not included.
    """
    arguments = shlex.split(place.again)[2:]
    pairs = zip(arguments[::2], arguments[1::2], strict=False)
    return dict(itertools.takewhile(lambda pair: pair[0].startswith("--"), pairs))


def of_either(target: str, cachedir: Path | None) -> Target:
    """Return the target of a URL or a mountpoint; text with ``://`` is a URL.

    Raises:
        NotMountedError: the text is a path on which no filesystem of s3fs-meta is mounted.
    """
    if "://" in target:
        return of_url(target, cachedir)
    return of_mountpoint(Path(target), cachedir)


def _is_of(note: Mapping[str, Any], mounted: Mounted) -> bool:
    """Return whether the note of a running mount describes *mounted*, at any mountpoint.

    The device number is not enough, because the kernel reuses the numbers of ended mounts. If a
    daemon still uploads after its unmount, a newer mount can have the same device number, and even
    the same URL on another server.
    """
    return bool(note["device"] == mounted.device and note["url"] == unquoted(mounted.source))


def _best(notes: Iterable[dict[str, Any]], mounted: Mounted) -> dict[str, Any] | None:
    """Return a note that describes *mounted*, if possible with the same mountpoint, or None."""
    return max(
        (note for note in notes if _is_of(note, mounted)),
        key=lambda note: (note["mountpoint"] == mounted.mountpoint, note["started"]),
        default=None,
    )


def is_served(mounted: Mounted) -> bool:
    """Return whether the note of a running daemon of this user describes *mounted*."""
    return any(_is_of(note, mounted) for note in _living_notes())


def daemon_pid(mounted: Mounted) -> int | None:
    """Return the PID of a mount's daemon, even if it was killed; None if the mount has no note."""
    found = _best(_living_notes(), mounted) or _best(_killed_notes(), mounted)
    return None if found is None else int(found["path"].name)


def all_mounted() -> list[Target]:
    """Return all s3fs-meta filesystems that are mounted or have a running daemon."""
    # A later mount on the same path covers the earlier ones.
    visible = {one.mountpoint: one for one in mount_table.read()}
    found = [
        _of_mounted(one, None) for one in visible.values() if one.fs_type == mount_table.FS_TYPE
    ]
    states = {place.state for place in found}
    ending = [_ending(note) for note in _living_notes()]
    return found + [place for place in ending if place.state not in states]


def only_mounted(option: str) -> Target:
    """Return the only mount on this host, for a command without a target.

    Raises:
        UsageError: this host has no mount, or several mounts, which the message lists.
    """
    found = all_mounted()
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(place.mountpoint or place.url) for place in found)
    raise UsageError(
        f"{option} needs a mount: {f'choose one of {names}' if found else 'nothing is mounted'}"
    )


def write_note(place: Target, mounted: Mounted, again: str = "") -> Path | None:
    """Write the note of this process's mount; return its path, or None if writing fails.

    Notes of processes that have ended are removed.

    Args:
        place: the filesystem.
        mounted: its mount.
        again: the command that mounts it with the same options.
    """
    _notes()  # called because it removes outdated notes
    path = notes_dir() / str(os.getpid())
    note = {
        "url": place.url,
        "state": str(place.state),
        "mountpoint": mounted.mountpoint,
        "device": mounted.device,
        "started": _started(os.getpid()),
        "outcome": None,
        "again": again,
        "mount_namespace": _own_namespace("mnt"),
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, note)
    except OSError as exc:
        import logging  # a slow import that most commands do not need

        log = logging.getLogger(__name__)
        log.warning(
            "cannot record the mount, so commands on %s will need --cachedir: %s",
            mounted.mountpoint,
            exc,
        )
        return None
    return path


def end_note(path: Path, outcome: dict[str, Any]) -> None:
    """Record the outcome of a mount in its note."""
    with contextlib.suppress(OSError):
        note = _read_note(path)
        if note is not None:
            _write(path, {key: note[key] for key in note if key != "path"} | {"outcome": outcome})


def outcome_of(place: Target) -> dict[str, Any] | None:
    """Return the outcome in the note of a target's daemon, or None if no outcome is recorded."""
    if place.note is None:
        return None
    try:
        note = _read_note(place.note)
    except OSError:
        return None
    return note["outcome"] if note is not None and note["started"] == place.started else None


def _write(path: Path, note: Mapping[str, Any]) -> None:
    """Replace a note atomically, so that no reader sees an incomplete note."""
    tmp = path.with_name(f"{path.name}{_NEW}")
    with open(open_regular(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
        json.dump(note, file)
    tmp.replace(path)


def unquoted(source: str) -> str:
    """Decode the percent-encoded source of a mount in the mount table; return the URL."""
    return unquote(source)


def _ending(note: dict[str, Any]) -> Target:
    return Target(
        note["url"],
        Path(note["state"]),
        note["mountpoint"],
        outcome=note["outcome"],
        note=note["path"],
        started=note["started"],
        again=note["again"],
    )


def _living_notes() -> list[dict[str, Any]]:
    """Return the notes of running mounts; the notes of ended mounts are not read."""
    found = []
    processes = set(os.listdir("/proc"))
    for path in _note_paths():
        started = _started(int(path.name)) if path.name in processes else 0
        with contextlib.suppress(OSError):
            note = _read_note(path) if started else None
            if note is not None and note["outcome"] is None and note["started"] == started:
                found.append(note)
    return found


def _killed_notes() -> list[dict[str, Any]]:
    """Return the notes of mounts whose daemon was killed."""
    found = []
    for path in _note_paths():
        with contextlib.suppress(OSError):
            note = _read_note(path)
            is_ended = note is None or note["outcome"] is not None
            if note is not None and not is_ended and not is_alive(note["path"], note["started"]):
                found.append(note)
    return found


def _may_be_mounted(note: Mapping[str, Any], mounts: Iterable[Mounted], age_s: float) -> bool:
    """Return whether a killed daemon's mount may exist in this or another mount namespace."""
    is_visible = note["mount_namespace"] in {0, _own_namespace("mnt")}
    return any(_is_of(note, one) for one in mounts) or (not is_visible and age_s < _ELSEWHERE_S_MAX)


def is_alive(note: Path | None, started: int) -> bool:
    """Return whether the daemon that wrote a note runs; False without a note."""
    return note is not None and _started(int(note.name)) == started


def _notes() -> list[dict[str, Any]]:
    """Return the notes of running mounts, then the notes of ended mounts, newest first.

    Remove the notes of killed processes whose mounts no longer exist. Remove the notes of ended
    mounts that are older than _ENDED_S_MAX, or not among the newest ENDED_NOTES_MAX.
    """
    living, ended = [], []
    mounts = [one for one in mount_table.read() if one.fs_type == mount_table.FS_TYPE]
    for path in _note_paths():
        with contextlib.suppress(OSError):
            age_s = time.time() - path.stat().st_mtime
            note = _read_note(path)
            if note is None:
                # A daemon of a different version may have written a note that is unreadable here.
                if _started(int(path.name)) == 0:
                    path.unlink(missing_ok=True)
            elif note["outcome"] is not None and age_s < _ENDED_S_MAX:
                ended.append((age_s, note))
            elif note["outcome"] is None and is_alive(note["path"], note["started"]):
                living.append(note)
            elif note["outcome"] is not None or not _may_be_mounted(note, mounts, age_s):
                path.unlink(missing_ok=True)
    latest = [note for _age, note in sorted(ended, key=lambda one: one[0])]
    for note in latest[ENDED_NOTES_MAX:]:
        with contextlib.suppress(OSError):
            note["path"].unlink(missing_ok=True)
    return living + latest[:ENDED_NOTES_MAX]


def _read_note(path: Path) -> dict[str, Any] | None:
    """Return a note, including its path, or None if its fields do not match this version.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    try:
        note = json.loads(read_regular(path, NOTE_BYTES_MAX))
    except (ValueError, RecursionError):
        return None
    if not isinstance(note, dict) or not note.keys() >= _NOTE.keys():
        return None
    if not all(isinstance(note[key], kind) for key, kind in _NOTE.items()):
        return None
    if note["outcome"] is not None and not note["outcome"].keys() >= {"complete", "why"}:
        return None
    # Earlier versions do not write the fields ``again`` and ``mount_namespace``.
    again, namespace = note.get("again"), note.get("mount_namespace")
    return {key: note[key] for key in _NOTE} | {
        "again": again if isinstance(again, str) else "",
        "mount_namespace": namespace if isinstance(namespace, int) else 0,
        "path": path,
    }


def _note_paths() -> list[Path]:
    try:
        return [path for path in notes_dir().iterdir() if _PID.fullmatch(path.name)]
    except OSError:
        return []


def remove_stale_notes() -> None:
    """Remove incomplete notes, and notes of ended PID namespaces. The call blocks."""
    with contextlib.suppress(OSError):  # another command may remove the same notes
        remove_incomplete(notes_dir())
    # Remove nothing if a process cannot be inspected, because it may be in any namespace.
    with contextlib.suppress(OSError):
        notes = runtime_dir(os.environ, os.geteuid())
        if _own_namespace() == _FIRST_PID_NAMESPACE and any(notes.glob(f"{_NAMESPACE}*")):
            remove_ended_namespaces(notes, inner_namespaces)


def remove_incomplete(notes: Path) -> None:
    """Remove incomplete notes, whose writer was killed before the rename."""
    for path in notes.glob(f"*{_NEW}"):
        if _PID.fullmatch(path.stem) and not is_running(int(path.stem)):
            path.unlink(missing_ok=True)


def remove_ended_namespaces(notes: Path, living: Callable[[], Set[int]]) -> None:
    """Remove the subfolders of PID namespaces that have no process.

    Args:
        notes: the directory of the notes.
        living: returns the namespaces of all processes; called after the folders were listed.
    """
    folders = list(notes.glob(f"{_NAMESPACE}*"))
    names = {f"{_NAMESPACE}{namespace}" for namespace in living()}
    for folder in folders:
        if folder.name not in names:
            for note in folder.iterdir():
                note.unlink(missing_ok=True)
            folder.rmdir()


def inner_namespaces() -> set[int]:
    """Return the PID namespaces inside this process's namespace that have processes.

    Raises:
        PermissionError: a process in an inner namespace may not be inspected.
    """
    found = set()
    for process in Path("/proc").iterdir():
        if _PID.fullmatch(process.name):
            with contextlib.suppress(
                FileNotFoundError, ProcessLookupError
            ):  # the process exited during the search
                if _is_in_inner_namespace(process):
                    found.add(os.stat(process / "ns" / "pid").st_ino)
    return found


def _is_in_inner_namespace(process: Path) -> bool:
    """Return whether a process is in a PID namespace inside the namespace of this process."""
    lines = (process / "status").read_text(errors="replace").splitlines()
    pids = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return len(pids) != 1


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not exited."""
    return _started(pid) != 0


def _started(pid: int) -> int:
    """Return the start time of a process in ticks since boot, or 0 if it does not run.

    PIDs are reused, so a PID is not enough to identify a process. See proc_pid_stat(5).
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    fields = status.rpartition(b")")[2].split()
    return 0 if fields[0] == _ZOMBIE else int(fields[19])
