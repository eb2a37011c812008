"""``s3fs-meta browse``: show the files of any retained point in time in a web browser."""

import contextlib
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.snapshot_source import Reading
from s3fs_meta.options import option_syntax

HELP = CommandHelp(
    name="browse",
    summary="Show the files of any retained point in time in a browser.",
    description=(
        "Prints the URL of a page on this host, and serves it until Ctrl-C. The page shows a time "
        "line, the tree at each point in time, the versions of a file and their differences, the "
        "space that each folder uses, and the statistics of a mount for the last hour. It offers "
        "files for download, and folders as tar or zip. The page cannot change the filesystem. "
        "Everything is read from the bucket, so changes that are not uploaded yet are missing.",
        "Only one browser can open the page, because the URL contains a token that works once. "
        "Only programs on this host can connect; from another host, use ssh -L. The pages need "
        "the package jinja2: pip install 's3fs-meta[browse]'.",
    ),
    examples=(
        Example(
            "s3fs-meta browse s3://bucket/home", "browse the files in a bucket, without a mount"
        ),
        Example(
            "s3fs-meta browse --open /mnt/home", "open the files of a mount in the default browser"
        ),
        Example(
            "s3fs-meta browse --listen 8080 s3://bucket/home", "listen on a fixed port, for ssh -L"
        ),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.NOT_MOUNTED),
)


def browse(
    target: options.Filesystem,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="[ADDR:]PORT",
            help="Loopback address to serve, or a port on 127.0.0.1; port 0 selects any free port.",
        ),
    ] = "0",
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the default browser.")
    ] = False,
    *,
    access: options.BucketOptions,
) -> None:
    """Run ``s3fs-meta browse``: serve web pages of a filesystem until Ctrl-C."""
    # The HTTP server is imported late, because only this command needs it.
    from s3fs_meta.browse import command
    from s3fs_meta.browse.access import leading_to

    address = option_syntax.listen_address("--listen", listen)
    place = targets.of_either(target, access.cachedir)
    with contextlib.ExitStack() as stack:
        front = stack.enter_context(TerminalFront())

        def announce(url: str) -> None:
            front.ready()
            output.print_at_once(url)
            front.notice("press Ctrl-C to stop")
            if open_browser:
                # The URL and its token are passed in a file, because all users can read arguments.
                page = Path(stack.enter_context(TemporaryDirectory())) / "s3fs-meta.html"
                page.write_text(leading_to(url))
                # A text browser runs until its user quits, so it runs in a thread.
                Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()

        reading = Reading(place, access.s3, access.passphrase_file, front)
        trio.run(command.serve, reading, address, announce)
