"""``s3fs-meta mount``: mount a filesystem."""

import contextlib
import logging
import os
import sys
import textwrap
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import trio
import typer

from s3fs_meta.cli import completion, options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.new_directory import NewDirectory
from s3fs_meta.console import interruption, logs
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.passphrase_source import INSTEAD_FOR_MOUNT
from s3fs_meta.console.ui import Front, TerminalFront
from s3fs_meta.mount.daemon import UMASK, run_in_background
from s3fs_meta.mount.existing import mount_table
from s3fs_meta.mount.plan import MountPlan, make_plan, merged_options
from s3fs_meta.mount.service import run_mount
from s3fs_meta.mount.stores import with_options
from s3fs_meta.options import option_syntax
from s3fs_meta.options.option_table import OPTIONS
from s3fs_meta.options.settings import MountOptions
from s3fs_meta.sync.host_state.state_dir import StateDir, remove_unused, without_new_remains

_WIDTH: Final = 92  # maximum length of the lines that describe an option

HELP = CommandHelp(
    name="mount",
    summary="Mount a filesystem.",
    description=(
        "The command returns when the filesystem is usable; its daemon continues in the "
        "background and logs to mount.log in the state directory. A mount after a crash recovers "
        "automatically. -o takes the options of fstab(5), separated by commas; --list-options "
        "lists them, and docs/reference/settings.md describes the effect, the cost and the crash "
        "behaviour of each option.",
    ),
    examples=(
        Example(
            "s3fs-meta mount s3://bucket/home ~/home", "mount a bucket; asks for the passphrase"
        ),
        Example(
            "s3fs-meta mount -o cachesize=50G,commit=1 local:///srv/store /mnt/store",
            "use a large cache, and sync every second",
        ),
        Example("s3fs-meta mount -o ro s3://bucket/home /mnt/look", "mount read-only"),
        Example(
            "s3fs-meta mount -o 'ro,at=1h ago' s3://bucket/home /mnt/then",
            "mount the state of an hour ago, read-only",
        ),
        Example(
            "s3fs-meta mount --foreground s3://bucket/home /mnt/home",
            "stay in the foreground, as in a systemd unit",
        ),
    ),
    exits=exits_of(*OF_BUCKET, ExitStatus.HELD, ExitStatus.UNCONDITIONAL, ExitStatus.FENCED),
)


def _list_options(wanted: bool) -> None:
    """Print the options that -o accepts and exit, if *wanted*."""
    if not wanted:
        return
    for option in OPTIONS:
        value = f"={option.takes}" if option.takes else ""
        default = f"  default: {option.default}" if option.takes and option.default else ""
        does = textwrap.wrap(option.does.replace("`", ""), _WIDTH)
        lines = [f"{option.word}{value}{default}", *(f"    {line}" for line in does)]
        sys.stdout.write("\n".join([*lines, ""]))
    raise typer.Exit


def mount(
    url: options.Url,
    mountpoint: Annotated[Path, typer.Argument(metavar="MOUNTPOINT", help="A directory.")],
    words: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            metavar="OPTION,...",
            help="Mount options, as in fstab; --list-options lists them.",
            autocompletion=completion.mount_options,
        ),
    ] = None,
    foreground: Annotated[
        bool,
        typer.Option("--foreground", "-f", help="Stay in the foreground, and log to the terminal."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    mkdir: Annotated[
        bool,
        typer.Option(
            "--mkdir", help="Create the mountpoint, and directories above it, if they do not exist."
        ),
    ] = False,
    *,
    access: options.BucketOptions,
    _list: Annotated[
        bool,
        typer.Option(
            "--list-options",
            help="List the options that -o accepts, and exit.",
            callback=_list_options,
            is_eager=True,
        ),
    ] = False,
    unsafe_single_writer: options.UnsafeSingleWriter = False,
    force_takeover: options.ForceTakeover = False,
    at_least: Annotated[
        str | None,
        typer.Option(
            "--at-least",
            metavar="TXG:HASH",
            help="Refuse a bucket that is older than TXG:HASH, the chain mark of status --all, or has "
            "another history.",
        ),
    ] = None,
) -> int:
    """Run ``s3fs-meta mount``: mount a filesystem."""
    flags = MountOptions(
        **asdict(access),
        unsafe_single_writer=unsafe_single_writer,
        force_takeover=force_takeover,
        at_least=None if at_least is None else option_syntax.mark("--at-least", at_least),
    )
    with NewDirectory(mountpoint) if mkdir else contextlib.nullcontext() as made:
        plan = make_plan(url, mountpoint, merged_options(words or [], flags))
        status = start(plan, foreground=foreground, verbose=verbose)
        if made is not None and status != ExitStatus.DONE:
            made.remove_unused()
    return status


def start(plan: MountPlan, *, foreground: bool, verbose: bool) -> int:
    """Mount in this process or in a background process; return the exit status."""
    level = logging.DEBUG if verbose else logging.INFO
    complete = partial(with_options, url=plan.place.url, options=plan.s3, state=plan.place.state)
    state = plan.place.state
    is_new = not state.exists()
    with without_new_remains(state), TerminalFront(instead=INSTEAD_FOR_MOUNT) as front:
        if foreground:
            logs.to_stderr(level, complete)
            os.umask(UMASK)
            trio.run(run_mount, plan, front)
            return ExitStatus.DONE
        log = StateDir(state).log

        def body(remote: Front) -> None:
            logs.to_file(log, level, complete)
            trio.run(run_mount, plan, remote)

        automounted = mount_table.is_automount(str(plan.mountpoint))
        with interruption.explained("nothing is mounted; it is safe to mount again"):
            status = run_in_background(body, log, front, automounted=automounted)
        if is_new and status not in {ExitStatus.DONE, ExitStatus.BUG}:
            remove_unused(state)
        return status
