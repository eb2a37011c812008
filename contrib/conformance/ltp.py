"""LTP: the Linux Test Project's tests of filesystems, from an installation in the directory $LTP.

The scenarios are ``fs``, ``fs_perms_simple``, and the filesystem calls of ``syscalls``. Every test
works below $TMPDIR, a directory of the filesystem under test. ``exclusions.ini`` lists the excluded
tests with reasons.

Source: https://github.com/linux-test-project/ltp, runtest/ and doc/users/setup_tests.rst.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from contrib.conformance import programs
from contrib.conformance.cases import Case, Outcome, exclusions, is_excluded
from contrib.conformance.places import Place

SUITE: Final = "ltp"
VARIABLE: Final = "LTP"
SECONDS_MAX: Final = 300.0
SCENARIOS: Final = ("fs_perms_simple", "syscalls", "fs")
LINE: Final = re.compile(r"^(\w[\w.-]*)\s+(\S.*)$")
TROUBLE: Final = re.compile(r"\b(TFAIL|TBROK|TWARN|FAIL|BROK)\b")

# The name of a system call, optionally followed by digits, letters or an ending such as _64.
SYSCALLS: Final = re.compile(
    r"(access|chdir|chmod|chown|close|copy_file_range|creat|dup|faccessat|fallocate|fchdir|fchmod"
    r"|fchmodat|fchmodat2|fchown|fchownat|fcntl|fdatasync|fgetxattr|flistxattr|flock|fremovexattr"
    r"|fsetxattr|fstat|fstatat|fstatfs|fsync|ftruncate|futimesat|getcwd|getdents|getxattr"
    r"|lchown|lgetxattr|link|linkat|listxattr|llistxattr|llseek|lremovexattr|lseek|lsetxattr|lstat"
    r"|mkdir|mkdirat|mknod|mknodat|mmap|msync|name_to_handle_at|open|open_by_handle_at|openat"
    r"|openat2|posix_fadvise|pread|preadv|preadv2|pwrite|pwritev|pwritev2|read|readahead|readdir"
    r"|readlink|readlinkat|readv|removexattr|rename|renameat|renameat2|rmdir|sendfile|setxattr"
    r"|splice|stat|statfs|statvfs|statx|symlink|symlinkat|sync_file_range|truncate|umask|unlink"
    r"|unlinkat|utime|utimensat|utimes|write|writev)\d*[A-Z]?(_\d+)?"
)


def root() -> Path:
    """Return the directory in which LTP is installed.

    Raises:
        MissingProgramError: $LTP is not set, or its directory does not contain LTP.
    """
    path = Path(os.environ.get(VARIABLE, "/nonexistent"))
    if not (path / "runtest").is_dir() or not (path / "testcases" / "bin").is_dir():
        raise programs.MissingProgramError(programs.HOW_TO_FIND[SUITE])
    return path


def run(place: Place, only: str | None) -> Iterator[Case]:
    """Run the tests one after another, each in its own directory."""
    ltp, left_out = root(), exclusions(SUITE)
    for scenario in SCENARIOS:
        for name, command in tests(ltp, scenario).items():
            if only is not None and only not in name:
                continue
            reason = is_excluded(name, left_out)
            if reason is None:
                yield _run(place, ltp, name, command)
            else:
                yield Case(SUITE, name, Outcome.SKIPPED, f"excluded: {reason}")


def tests(ltp: Path, scenario: str) -> Mapping[str, str]:
    """Return the commands of all tests in a scenario, by name of the test."""
    found = {}
    for line in (ltp / "runtest" / scenario).read_text().splitlines():
        match = LINE.match(line)
        if match and (scenario != "syscalls" or SYSCALLS.fullmatch(match[1])):
            found[match[1]] = match[2]
    return found


def _run(place: Place, ltp: Path, name: str, command: str) -> Case:
    directory = place.directory / name
    directory.mkdir()
    directory.chmod(0o777)
    finished = programs.run(
        ["/bin/sh", "-c", command],
        directory=directory,
        seconds_max=SECONDS_MAX,
        environment={
            **os.environ,
            "LTPROOT": str(ltp),
            "PATH": f"{ltp}/testcases/bin:{os.environ['PATH']}",
            "TMPDIR": str(directory),
            "LTP_COLORIZE_OUTPUT": "n",
            "KCONFIG_SKIP_CHECK": "1",
        },
    )
    programs.remove_tree(directory)
    outcome, detail = judge(finished)
    return Case(SUITE, name, outcome, detail, finished.seconds)


def judge(finished: programs.Finished) -> tuple[Outcome, str]:
    """Return the outcome of a test, and the reason if it did not pass.

    The exit status of a test is a sum of 1 (failed), 2 (broken), 4 (warned) and 32 (not supported).
    """
    lines = finished.output.splitlines()
    trouble = [line for line in lines if TROUBLE.search(line) and not line.endswith(" 0")]
    detail = "\n".join(trouble[:6]) or programs.tail(finished.output, 4)
    if finished.status == 0:
        return Outcome.PASSED, ""
    if finished.status == 32:  # All cases printed TCONF, "not supported".
        reasons = [line for line in lines if "TCONF" in line]
        return Outcome.SKIPPED, "\n".join(reasons[:2]) or programs.tail(finished.output, 2)
    ended = "timed out" if finished.status is None else f"status {finished.status}"
    return Outcome.FAILED, f"{ended}: {detail}"
