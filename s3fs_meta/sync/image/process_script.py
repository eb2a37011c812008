"""The entry point of the restoring process, which drops inherited state before other imports.

Owns: the state that the process inherits: signals, open files, directory, priority. Does not know:
restores (``process_worker``).
The daemon starts the process with execve(2) and a socket as descriptor 0. The process inherits no
other open file, and exits when the daemon does.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
NICE = 10  # niceness, so that a restore does not slow down requests to the mount


def main(parent: str, *path: str) -> None:
    """Prepare the process, then restore one database."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the daemon decides when this process exits
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))
    for _ in ("stdout", "stderr"):
        os.open(os.devnull, os.O_WRONLY)
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir("/")  # a working directory on another mount would keep that mount busy
    os.nice(NICE)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        return  # the daemon exited before PR_SET_PDEATHSIG took effect
    sys.path[:] = path
    from s3fs_meta import memory_allocator
    from s3fs_meta.sync.image import process_worker

    memory_allocator.bound_free_memory()
    process_worker.main(requests)


if __name__ == "__main__":
    main(*sys.argv[1:])
