"""The start of the program: a fast path for ``rm PATH…``, and the parser for other commands.

Owns: the choice between the fast path and the command line. Does not know: other commands.
``rm PATH…`` without options must be as fast as rm(1) of one file, for a tree of any size. Loading
the parser, tables and event loop takes five times as long as the removal itself.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from s3fs_meta.cli import garbage_collection
from s3fs_meta.console import child_signal, ending_signals, standard_streams

# Equal to ExitStatus.INTERRUPTED and FSCK_CANCELLED, whose module is slow to import.
_INTERRUPTED: Final = 130
_FSCK_INTERRUPTED: Final = 32
# The commands that release the lease after a signal, and report what remains.
_REPORTING_ENDS: Final = frozenset({"fsck", "keep", "reclaim", "rollback"})


def program() -> NoReturn:
    """Run the program ``s3fs-meta`` and exit."""
    garbage_collection.postpone()
    standard_streams.open_missing()
    child_signal.restore()
    if sys.argv[1:2] and sys.argv[1] in _REPORTING_ENDS:
        ending_signals.interrupt()
    arguments = sys.argv[1:]
    try:
        run = _loaded(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("s3fs-meta: interrupted: nothing was changed\n")
        sys.exit(_FSCK_INTERRUPTED if arguments[:1] == ["fsck"] else _INTERRUPTED)
    sys.exit(run())


def _loaded(arguments: Sequence[str]) -> Callable[[], int]:
    """Hide the passphrase of the environment; return the function that runs a command line."""
    if "S3FS_META_PASSPHRASE" in os.environ:
        from s3fs_meta.console import secret_environment

        secret_environment.take()
    if is_plain_removal(arguments) and not sys.flags.optimize:
        return lambda: _remove(arguments[1:])
    from s3fs_meta.cli import entry  # imported late, because loading the parser is slow

    return entry.program


def is_plain_removal(arguments: Sequence[str]) -> bool:
    """Return whether a command line is ``rm`` with paths and no options.

    The parser refuses an empty path, which would otherwise mean the working directory.
    """
    return (
        arguments[:1] == ["rm"]
        and len(arguments) > 1
        and not any(not argument or argument.startswith("-") for argument in arguments[1:])
    )


def _remove(paths: Sequence[str]) -> int:
    """Check all paths, then remove the files and trees; return the exit status."""
    try:
        from s3fs_meta.mount.existing import mount_paths

        found = mount_paths.changeable(paths, None)
        for entry in found:
            mount_paths.remove(entry)
        mount_paths.require_seen(found, there=False)
    except KeyboardInterrupt:
        sys.stderr.write("s3fs-meta: interrupted: some of the paths may be removed already\n")
        return _INTERRUPTED
    except Exception as exc:  # noqa: BLE001  # the outermost frame
        return _report(exc)
    return 0


def _report(exc: BaseException) -> int:
    """Print an error in the same form as all other commands; return the exit status."""
    from s3fs_meta.console import boundary  # imported late, because loading the parser is slow

    def again() -> int:
        raise exc

    return int(boundary.run(again))
