"""Options and arguments that several commands share."""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from s3fs_meta.cli import completion
from s3fs_meta.cli.given_arguments import given_text
from s3fs_meta.console import interruption, passphrase_source
from s3fs_meta.console.boundary import PROGRAM, print_line
from s3fs_meta.console.passphrase_source import Ask, ask_terminal
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync.superblock.unlocking import Passphrase


def time_option(name: str, text: str) -> Any:
    """Return an option for a point in time, with completion of the known points."""
    return typer.Option(name, metavar="TIME", help=text, autocompletion=completion.points_in_time)


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="Location of the filesystem: local:///absolute/path or s3://bucket/prefix.",
    ),
]
Mountpoint = Annotated[
    Path,
    typer.Argument(
        metavar="MOUNTPOINT",
        help="Directory on which the filesystem is mounted.",
        autocompletion=completion.mountpoints,
    ),
]
ReadablePaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="Files and directory trees in one mounted filesystem.",
    ),
]
Filesystem = Annotated[
    str,
    typer.Argument(
        metavar="MOUNTPOINT|URL",
        help="The filesystem.",
        callback=given_text,
        autocompletion=completion.mountpoints,
    ),
]
PathOrUrl = Annotated[
    str,
    typer.Argument(
        metavar="PATH|URL",
        help="Path in a mounted filesystem, or the URL of a bucket.",
        callback=given_text,
    ),
]
PathInBucket = Annotated[
    str | None,
    typer.Argument(
        metavar="[PATH]",
        help="With a URL: the file or directory, as a path relative to the root.",
        callback=given_text,
    ),
]
Cachedir = Annotated[
    Path | None,
    typer.Option(
        "--cachedir",
        metavar="DIR",
        help="Directory for local state; default: $XDG_STATE_HOME/s3fs-meta, and for root "
        "/var/lib/s3fs-meta.",
    ),
]
EndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url",
        metavar="URL",
        help="URL of an S3 server other than AWS.",
        callback=given_text,
    ),
]
Region = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="NAME",
        help="Region of the bucket.",
        callback=given_text,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Profile in the AWS configuration.",
        callback=given_text,
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help="File whose first line is the passphrase; default: $S3FS_META_PASSPHRASE, else a "
        "prompt on the terminal.",
    ),
]
UnsafeSingleWriter = Annotated[
    bool,
    typer.Option(
        "--unsafe-single-writer",
        help="Accept a store that ignores conditional writes. A second writer can then destroy "
        "the filesystem.",
    ),
]
ForceTakeover = Annotated[
    bool,
    typer.Option(
        "--takeover",
        "--force-takeover",
        help="Take the lease from the host that holds it. Changes that the other host has not "
        "uploaded stay on that host.",
    ),
]
At = Annotated[
    str,
    time_option(
        "--at",
        "Point in time: ISO 8601, an age such as 10m, txg=N, a kept NAME, or newest.",
    ),
]
NoPrivileges = Annotated[
    bool,
    typer.Option(
        "--no-privileges",
        help="Do not copy devices, file capabilities, set-user-ID and set-group-ID bits, which "
        "would give privileges to users of the copy.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the output as one JSON object.")]


def warn_if_readable(passphrase_file: Path | None) -> None:
    """Print a warning if other users can read a passphrase file."""
    warning = passphrase_source.readable_by_others(passphrase_file)
    if warning:
        print_line(PROGRAM, warning)


def command(*arguments: str | Path, cachedir: Path | None = None) -> str:
    """Return a command line of this program, quoted for a shell."""
    state = () if cachedir is None else ("--cachedir", cachedir)
    return shlex.join(map(str, ("s3fs-meta", *arguments, *state)))


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """The options of every command that opens a bucket; ``entry.flat`` adds them to the command."""

    passphrase_file: PassphraseFile = None
    endpoint_url: EndpointUrl = None
    region: Region = None
    profile: Profile = None
    cachedir: Cachedir = None

    @property
    def s3(self) -> S3Options:
        """Return the options for the S3 store of the bucket."""
        return S3Options(self.endpoint_url, self.region, self.profile)

    @property
    def arguments(self) -> list[str]:
        """Return the options that were given, as arguments of a command line in a message."""
        named = (
            (f"--{one.name.replace('_', '-')}", getattr(self, one.name)) for one in fields(self)
        )
        return [word for name, value in named if value is not None for word in (name, str(value))]

    def secret(self, ask: Ask = ask_terminal) -> Passphrase:
        """Return a passphrase that is read or prompted for only when it is needed."""
        warn_if_readable(self.passphrase_file)
        during = interruption.interruptible  # reading a passphrase blocks the event loop
        return passphrase_source.secret(self.passphrase_file, ask, during)
