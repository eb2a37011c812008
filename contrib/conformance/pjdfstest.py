"""pjdfstest: 398 cases that test the effects and errors of system calls.

The program runs twice: the cases that make the filesystem read-only have a separate run, because
the remount fails while another case has a file open for writing.

Source: https://github.com/saidsay-so/pjdfstest, version 0.2.2.
"""

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from contrib.conformance import programs
from contrib.conformance.cases import Case, Outcome
from contrib.conformance.places import Place

SUITE: Final = "pjdfstest"
SECONDS_MAX: Final = 1800.0
REMOUNT_PATTERN: Final = "erofs"
USERS: Final = ("nobody", "daemon")  # The default users of the suite, which exist on every system.
# The path of a socket has at most 108 bytes, including the terminating NUL.
# The suite adds two temporary directories and one or two names to the run's directory.
DIRECTORY_BYTES_MAX: Final = 107 - 2 * len("/.tmpXXXXXX") - len("/") - 32 - len("/file")
LINE: Final = re.compile(r"^(\S+::\S+)\s+(ok|skipped|FAILED)$")
OUTCOMES: Final = {"ok": Outcome.PASSED, "skipped": Outcome.SKIPPED, "FAILED": Outcome.FAILED}

# The suite calls mount(8) with remount,ro; for FUSE, mount(8) calls a helper that cannot remount.
# Option -i skips the helper; bind limits the change to one mount, which all kernels permit.
MOUNT_SCRIPT: Final = """#!/bin/sh
case "$2" in
remount,*) options="remount,bind,${{2#remount,}}"; shift 2; exec {mount} -i -o "$options" "$@" ;;
esac
exec {mount} "$@"
"""

CONFIGURATION: Final = """
[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utime_now = {{}}
utimensat = {{}}
[settings]
naptime = 0.01
allow_remount = {allow_remount}
[dummy_auth]
entries = [{entries}]
"""


def run(place: Place, only: str | None) -> Iterator[Case]:
    """Run the suite in *place*.

    If *only* is given, run only cases whose names contain this text.
    """
    if len(os.fsencode(place.directory)) > DIRECTORY_BYTES_MAX:
        detail = (
            f"{place.directory} has more than {DIRECTORY_BYTES_MAX} bytes: sockets below it "
            "would fail with ENAMETOOLONG; give a shorter directory with --scratch or --target"
        )
        yield Case(SUITE, "(the run itself)", Outcome.FAILED, detail)
        return
    program = programs.find(SUITE)
    cases = _run(place, program, only, allow_remount=False)
    remounts = {name for name in cases if REMOUNT_PATTERN in name}
    if place.own_mount and remounts:
        cases.update(_run(place, program, REMOUNT_PATTERN, allow_remount=True))
    yield from cases.values()


def _run(place: Place, program: str, only: str | None, *, allow_remount: bool) -> dict[str, Case]:
    configuration = place.scratch / f"pjdfstest-{allow_remount}.toml"
    configuration.write_text(
        CONFIGURATION.format(
            allow_remount=str(allow_remount).lower(),
            entries=", ".join(f'["{user}", "{_group(user)}"]' for user in USERS),
        )
    )
    command = [program, "-c", str(configuration), "-p", str(place.directory)]
    second = place.scratch / "second"
    second.mkdir(exist_ok=True)
    if second.stat().st_dev != place.directory.stat().st_dev:
        command += ["-s", str(second)]
    finished = programs.run(
        [*command, *([only] if only else [])],
        directory=place.scratch,
        seconds_max=SECONDS_MAX,
        environment={
            **os.environ,
            "NO_COLOR": "1",
            "RUST_BACKTRACE": "0",
            "PATH": f"{_mount_script(place.scratch)}:{os.environ['PATH']}",
        },
    )
    cases = {case.name: case for case in parse(finished.output)}
    if finished.status not in {0, 1} or not cases:
        detail = f"status {finished.status}: {programs.tail(finished.output)}"
        cases["(the run itself)"] = Case(SUITE, "(the run itself)", Outcome.FAILED, detail)
    return cases


def parse(output: str) -> Iterator[Case]:
    """Yield the cases in the program's report; the lines below a case contain the reason."""
    case: Case | None = None
    for line in output.splitlines():
        match = LINE.match(line)
        if match:
            if case:
                yield case
            case = Case(SUITE, match[1], OUTCOMES[match[2]])
        elif case and line.startswith(("\t", "  ")) and case.outcome is not Outcome.PASSED:
            case = case._replace(detail=f"{case.detail} {line.strip()}".strip())
    if case:
        yield case


def _group(user: str) -> str:
    """Return the name of a user's primary group, which depends on the system."""
    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name


def _mount_script(scratch: Path) -> Path:
    """Write a program ``mount`` that can remount FUSE; return its directory."""
    folder = scratch / "bin"
    folder.mkdir(exist_ok=True)
    script = folder / "mount"
    script.write_text(MOUNT_SCRIPT.format(mount="/bin/mount"))
    script.chmod(stat.S_IRWXU)
    return folder
