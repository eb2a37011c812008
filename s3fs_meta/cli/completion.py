"""Values that the shell's completion offers: mount options and mountpoints.

Owns: the candidates. Does not know: shells, whose scripts ``contrib.docs.reference`` writes.
Keeps: no request to a bucket, because the shell waits for the answer.
"""

import os
from collections.abc import Mapping
from typing import Final

from s3fs_meta.mount import mount_table
from s3fs_meta.option_table import OPTIONS, WITHOUT_EFFECT

VARIABLE: Final = "_S3FS_META_COMPLETE"  # set by the script of a shell
_LINES: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # the command line: bash; zsh and fish


def words_to_complete(environment: Mapping[str, str]) -> list[str] | None:
    """Return the arguments of the command line that a shell completes; None without a shell."""
    if VARIABLE not in environment:
        return None
    line = next((environment[name] for name in _LINES if name in environment), "")
    return line.split()[1:]


def mount_options(incomplete: str) -> list[str]:
    """Return the comma-separated options of ``-o`` with each option that may come next."""
    before, comma, last = incomplete.rpartition(",")
    given = {part.partition("=")[0] for part in before.split(",")}
    return [
        f"{before}{comma}{one.word}{'=' if one.takes else ''}"
        for one in OPTIONS
        if one.word.startswith(last) and one.word not in given and one.word not in WITHOUT_EFFECT
    ]


def mountpoints(incomplete: str) -> list[str]:
    """Return the mountpoints of this host that begin with a path, which may be relative."""
    if "://" in incomplete:
        return []
    wanted = os.path.join(os.getcwd(), incomplete)
    return [
        incomplete + one.mountpoint[len(wanted) :] if incomplete else one.mountpoint
        for one in mount_table.read()
        if one.fs_type == mount_table.FS_TYPE
        and (not incomplete or one.mountpoint.startswith(wanted))
    ]
