"""``s3fs-meta version``: print the installed version."""

import platform
from importlib import metadata

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.codec.superblock import FORMAT_VERSION
from s3fs_meta.console import output

HELP = CommandHelp(
    name="version",
    summary="Print the versions of this program and of the software that it uses.",
    description=(),
    examples=(Example("s3fs-meta version", "print versions for a bug report"),),
    exits=exits_of(),
)

_PARTS = ("pyfuse3", "trio", "apsw", "boto3", "zstandard", "cryptography", "blake3")


def program_version() -> str:
    """Return the installed version."""
    return metadata.version("s3fs-meta")


def version(json: options.Json = False) -> None:
    """Run ``s3fs-meta version``: print the installed version."""
    versions = {
        "s3fs-meta": program_version(),
        "format": str(FORMAT_VERSION),
        "Python": platform.python_version(),
        "Linux": platform.release(),
        **{part: metadata.version(part) for part in _PARTS},
    }
    if json:
        output.print_json(versions)
    else:
        output.print_table(versions)
