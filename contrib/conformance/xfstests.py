"""xfstests: the generic tests of one group, from a built checkout in $XFSTESTS.

This module makes two filesystems, TEST and SCRATCH; the suite mounts and unmounts them. PATH begins
with a directory that has a separate ``mount`` and ``df``. This ``mount`` calls the helper of the
program under test, because mount(8) finds helpers only in /sbin. This ``df`` omits the subtype,
because xfstests supports the type ``fuse`` only without a subtype. ``exclusions.ini`` lists the
excluded tests with reasons. A test that the suite reports as not applicable counts as skipped.

One run of the suite's program ``check`` executes many tests. If a test takes longer than
SECONDS_MAX, this run is killed, and a new run continues with the next test.

Source: https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git, README and README.fuse.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from contrib.bench import subjects
from contrib.conformance import programs
from contrib.conformance.cases import Case, Outcome, exclusions, is_excluded
from contrib.conformance.places import Place

SUITE: Final = "xfstests"
VARIABLE: Final = "XFSTESTS"
GROUP: Final = "quick"
SECONDS_MAX: Final = 1800.0
UNMOUNT_S_MAX: Final = 300.0
NAME: Final = r"generic/\d+"
BEGUN: Final = re.compile(rf"^({NAME})\s")
# Example lines: generic/001 44s ... 91s | generic/009 [not run] why | generic/003 - output mismatch
ENDED: Final = re.compile(rf"^({NAME})\s+(?:\d+s \.\.\.\s+)?(\d+)s\s*$")
NOT_RUN: Final = re.compile(rf"^({NAME})\s+(?:\d+s \.\.\.\s+)?\[(?:not run|expunged)\]\s*(.*)$")

CONFIGURATION: Final = """
export FSTYP=fuse
export FUSE_SUBTYP=.s3fs-meta
export TEST_DEV=local://{scratch}/test-bucket
export TEST_DIR={scratch}/test
export SCRATCH_DEV=local://{scratch}/scratch-bucket
export SCRATCH_MNT={scratch}/scratch
export MOUNT_OPTIONS="-o{options}"
export TEST_FS_MOUNT_OPTS="-o{options}"
export RESULT_BASE={scratch}/results
"""

DF: Final = "#!/bin/sh\n/bin/df \"$@\" | sed 's/ fuse\\.s3fs-meta / fuse           /'\n"

# A mount program that calls the helper for s3fs-meta, and /bin/mount otherwise.
MOUNT: Final = """#!{python} -S
import os, sys
rest, options, kind, own = [], [], None, True
words = iter(sys.argv[1:])
for word in words:
    if word[:2] in ("-t", "-o"):
        value = word[2:] or next(words)
        kind, options = (value, options) if word[1] == "t" else (kind, [*options, value])
    elif word.startswith("-"):
        own = own and word == "-w"
    else:
        rest.append(word.rstrip("/"))
text = ",".join(options)
if own and kind is None and "remount" in text.split(",") and rest:
    for line in open("/proc/self/mountinfo"):
        fields, (fs_type, source, _) = line.split(), line.split(" - ")[1].split()
        if fs_type == "fuse.s3fs-meta" and rest[-1] in (fields[4], source):
            kind, rest = fs_type, [source, fields[4]]
if own and kind == "fuse.s3fs-meta" and len(rest) == 2:
    os.environ.update({environment!r})
    log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    command = [*{helper!r}, *rest, "-o", text]
    os.execvp(command[0], command)
os.execv("/bin/mount", ["mount", *sys.argv[1:]])
"""


def root() -> Path:
    """Return the directory of the checkout.

    Raises:
        MissingProgramError: $XFSTESTS is not set, or its checkout is not built.
    """
    path = Path(os.environ.get(VARIABLE, "/nonexistent"))
    if not (path / "check").exists() or not (path / "ltp" / "fsx").exists():
        raise programs.MissingProgramError(programs.HOW_TO_FIND[SUITE])
    return path


def run(
    place: Place, only: str | None, options: Mapping[str, str], group: str = GROUP
) -> Iterator[Case]:
    """Run the tests of a group on two new filesystems."""
    checkout, left_out = root(), exclusions(SUITE)
    wanted = []
    for name in members((checkout / "tests" / "generic" / "group.list").read_text(), group):
        if only is not None and only not in name:
            continue
        reason = is_excluded(name, left_out)
        if reason is None:
            wanted.append(name)
        else:
            yield Case(SUITE, name, Outcome.SKIPPED, f"excluded: {reason}")
    environment = _prepare(place.scratch, options)
    try:
        while wanted:
            name = ""
            for case in _call(checkout, wanted, environment):
                yield case
                name = case.name
            if name not in wanted:
                break
            wanted = wanted[wanted.index(name) + 1 :]
            if wanted:  # Processes of the killed test must not reach the mounts of the next run.
                _unmount(place.scratch)
    finally:
        _unmount(place.scratch)
    yield from _checked(place.scratch)


def members(groups: str, group: str = GROUP) -> list[str]:
    """Return the tests of a group, except dangerous tests, which may crash a kernel."""
    found = []
    for line in groups.splitlines():
        number, *words = line.split() or ["#"]
        if number.isdigit() and group in words and not any("dangerous" in each for each in words):
            found.append(f"generic/{number}")
    return found


def _prepare(scratch: Path, options: Mapping[str, str]) -> dict[str, str]:
    """Make TEST and SCRATCH, and the programs ``mount`` and ``df``; return the environment."""
    (scratch / "bin").mkdir()
    for name in ("test", "scratch"):
        (scratch / name).mkdir()
        bucket = f"local://{scratch}/{name}-bucket"
        subjects.run(["mkfs", "--plain", "--cachedir", str(scratch / "state"), bucket])
    words = {
        "allow_other": "",
        "dev": "",
        "suid": "",
        "cachedir": str(scratch / "state"),
        **options,
    }
    text = ",".join(f"{name}={value}" if value else name for name, value in words.items())
    configuration = scratch / "local.config"
    configuration.write_text(CONFIGURATION.format(scratch=scratch, options=text))
    program = subjects.program()
    beside = Path(program[0]).with_name("mount.s3fs-meta")
    helper = (
        [str(beside)] if beside.exists() else [sys.executable, "-m", "s3fs_meta.cli.mount_helper"]
    )
    mount = MOUNT.format(
        python=sys.executable, helper=helper, log=str(scratch / "mount.log"),
        environment={"PYTHONPATH": subjects.environment()["PYTHONPATH"]},
    )  # fmt: skip
    for name, script in (("mount", mount), ("df", DF)):
        (scratch / "bin" / name).write_text(script)
        (scratch / "bin" / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{scratch}/bin:{os.environ['PATH']}",
        "HOST_OPTIONS": str(configuration),
    }


def _call(checkout: Path, names: Sequence[str], environment: Mapping[str, str]) -> Iterator[Case]:
    """Run tests until all are done, a test hangs, or ``check`` exits early; yield the results."""
    pieces = programs.pieces(
        ["./check", *names], directory=checkout, seconds_max=SECONDS_MAX, environment=environment
    )
    text, late, begun = "", False, False
    for piece in pieces:
        late = piece is None
        text += piece or ""
        *complete, text = reports(text)
        for report in complete:
            yield parse(report)
            begun = True
    if BEGUN.match(text):
        case = parse(text)
        detail = f"timed out after {SECONDS_MAX:g} s" if late else case.detail
        yield case._replace(detail=detail)
    elif not begun:
        yield Case(SUITE, "(the run itself)", Outcome.FAILED, programs.tail(text))


def reports(text: str) -> list[str]:
    """Split the output of ``check`` into one report per test; the last may be incomplete.

    Output before the first test and after the last test is omitted.
    """
    found = re.split(rf"(?m)^(?={NAME}\s|Ran: )", text)
    return found[1:] if len(found) > 1 and not BEGUN.match(found[0]) else found


def parse(report: str) -> Case:
    """Parse the report of a test: one line has the outcome and sometimes a reason."""
    first, _, below = report.partition("\n")
    if ended := ENDED.match(first):
        return Case(SUITE, ended[1], Outcome.PASSED, seconds=float(ended[2]))
    if not_run := NOT_RUN.match(first):
        return Case(SUITE, not_run[1], Outcome.SKIPPED, not_run[2])
    begun = BEGUN.match(first)
    assert begun, "a report begins with the name of a test"
    detail = [first[begun.end() :].strip(), *(line.strip() for line in below.splitlines()[2:12])]
    return Case(SUITE, begun[1], Outcome.FAILED, "\n".join(detail))


def _unmount(scratch: Path) -> None:
    """Unmount both filesystems, even if processes use them."""
    for name in ("test", "scratch"):
        if os.path.ismount(scratch / name):
            end = ["umount", "--force", "--cachedir", str(scratch / "state"), str(scratch / name)]
            command = [*subjects.program(), *end]
            subprocess.run(
                command,
                env=subjects.environment(),
                timeout=UNMOUNT_S_MAX,
                capture_output=True,
                check=False,
            )
        if os.path.ismount(scratch / name):
            subprocess.run(["umount", "--lazy", scratch / name], check=False)


def _checked(scratch: Path) -> Iterator[Case]:
    """Yield a case for each filesystem, which passes if fsck reports no damage."""
    for name in ("test", "scratch"):
        url = f"local://{scratch}/{name}-bucket"
        try:
            subjects.run(["fsck", "-n", url, "--cachedir", str(scratch / "state")])
        except subjects.SubjectError as exc:
            yield Case(SUITE, f"fsck-{name}", Outcome.FAILED, str(exc))
        else:
            yield Case(SUITE, f"fsck-{name}", Outcome.PASSED)
