"""The process and mount namespaces of a run. Their removal ends all processes and mounts."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from s3fs_meta.state_paths import runtime_dir

_NEWNS: Final = 0x20000
_NEWPID: Final = 0x20000000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18
_PDEATHSIG: Final = 1
_MNT_DETACH: Final = 2
_libc: Final = ctypes.CDLL(None, use_errno=True)


def run_inside(main: Callable[[], int], folder: Path) -> int:
    """Run *main* in new namespaces; return its status. Needs root.

    At the end no filesystem is mounted below *folder*. This process waits for the first process of
    the PID namespace. When the first process exits, the kernel kills all other processes of the
    namespace. *main* runs in a third process, which ^C interrupts.
    """
    _check(_libc.unshare(_NEWPID | _NEWNS))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    first = os.fork()
    if first == 0:
        _be_first(main)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGTERM))
    _, status = os.waitpid(first, 0)
    _check(_libc.umount2(b"/proc", _MNT_DETACH))  # Unmount /proc of the PID namespace that ended.
    for mountpoint in mountpoints(folder):  # These mounts were left behind by killed daemons.
        _check(_libc.umount2(os.fsencode(mountpoint), _MNT_DETACH))
    return os.waitstatus_to_exitcode(status)


def _be_first(main: Callable[[], int]) -> NoReturn:
    _check(_libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _check(_libc.mount(b"proc", b"/proc", b"proc", 0, None))
    # Mount notes are named after PIDs, so each PID namespace needs a separate directory of notes.
    notes = runtime_dir(os.environ, os.geteuid())
    notes.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(_libc.mount(b"notes", os.fsencode(notes), b"tmpfs", 0, None))
    worker = os.fork()
    if worker == 0:
        sys.exit(main())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(worker, signal.SIGINT))
    while True:
        pid, status = os.wait()
        if pid == worker:
            os._exit(max(os.waitstatus_to_exitcode(status), 0) or int(bool(status)))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def others() -> dict[int, str]:
    """Return all processes of the namespace except its first process and the caller."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) in {1, os.getpid()}:
            continue
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        found[int(folder.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


def mountpoints(folder: Path) -> list[str]:
    """Return all mountpoints below a directory."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [found for line in lines if (found := line.split()[4]).startswith(f"{folder}/")]
