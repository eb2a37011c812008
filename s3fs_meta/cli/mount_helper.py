"""``mount.s3fs-meta``: the helper that mount(8) calls, for example for /etc/fstab.

Owns: the arguments and exit statuses of mount(8)'s helpers. Does not know: how to mount.
Source: mount(8), "EXTERNAL HELPERS": ``mount.type spec dir [-sfnv] [-N namespace] [-o options]
[-t type.subtype]``.
"""

import getopt
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.cli import garbage_collection
from s3fs_meta.console import (
    boundary,
    child_signal,
    exits,
    secret_environment,
    standard_streams,
)
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import UsageError
from s3fs_meta.mount.handlers import remount
from s3fs_meta.options.settings import parse_mount_options

PROGRAM: Final = "mount.s3fs-meta"
USAGE: Final = f"usage: {PROGRAM} URL DIRECTORY [-sfnvrw] [-o OPTIONS]"

# Defaults of mount(8) for root; ``s3fs-meta mount`` has the FUSE defaults nodev and nosuid instead.
ROOT_DEFAULTS: Final = "dev,suid"

_OPTION_OF: Final = {"-r": "ro", "-w": "rw"}


class HelperArguments(NamedTuple):
    """The arguments of one call by mount(8)."""

    url: str
    directory: Path
    options: list[str]
    fake: bool
    verbose: bool


def parse(arguments: list[str]) -> HelperArguments:
    """Return the parsed arguments of mount(8).

    Raises:
        UsageError: the arguments do not have the form that mount(8) uses.
    """
    try:
        found, operands = getopt.gnu_getopt(arguments, "sfnvrwN:o:t:")
    except getopt.GetoptError as exc:
        raise UsageError(f"{exc.msg}; {USAGE}") from exc
    if len(operands) != 2 or not all(operands):  # noqa: PLR2004  # spec and dir
        raise UsageError(USAGE)  # an empty directory would be the working directory
    names = [name for name, _value in found]
    return HelperArguments(
        url=operands[0],
        directory=Path(operands[1]),
        options=[
            _OPTION_OF.get(name, value) for name, value in found if name in {"-o", *_OPTION_OF}
        ],
        fake="-f" in names,
        verbose="-v" in names,
    )


def run(arguments: list[str]) -> int:
    """Mount or remount, as mount(8) requests."""
    # The import is late, so that an error about a missing compiled extension is reported.
    from s3fs_meta.cli.mount import start
    from s3fs_meta.mount.plan import make_plan

    garbage_collection.begin()
    call = parse(arguments)
    if remount.asks_for_it(call.options):
        if not call.fake:
            remount.remount(call.url, call.directory, call.options)
        return ExitStatus.DONE
    defaults = [ROOT_DEFAULTS] if os.geteuid() == 0 else []
    options = parse_mount_options([*defaults, *call.options])
    plan = make_plan(call.url, call.directory, options)
    if call.fake:
        return ExitStatus.DONE
    return start(plan, foreground=False, verbose=call.verbose)


def main() -> int:
    """Run the helper and return mount(8)'s exit status."""
    garbage_collection.postpone()
    standard_streams.open_missing()
    child_signal.restore()
    secret_environment.take()
    status = boundary.run(lambda: run(sys.argv[1:]), program=PROGRAM)
    return exits.mount_status(ExitStatus(status))


if __name__ == "__main__":
    sys.exit(main())
