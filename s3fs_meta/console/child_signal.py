"""The signal SIGCHLD, which the caller of the program may have set to be ignored.

A process inherits ignored signals. If SIGCHLD is ignored, the kernel discards the exit statuses of
child processes, and waitpid(2) fails with ECHILD.
"""

import signal


def restore() -> None:
    """Restore the default action of SIGCHLD; call this before the first child process starts."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
