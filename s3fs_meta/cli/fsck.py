"""``s3fs-meta fsck``: check and repair a filesystem."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Final

import trio
import typer

from s3fs_meta.check.from_packs import Rebuilt
from s3fs_meta.check.report import EXIT_CORRECTED, EXIT_LEFT, Mode, Report
from s3fs_meta.check.run import FsckOptions
from s3fs_meta.cli import objects_from as objects_from_option
from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import CommandHelp, Example
from s3fs_meta.cli.fsck_run import CheckPlan, run_check, run_rebuild
from s3fs_meta.cli.given_arguments import given_text
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.console import interruption, output
from s3fs_meta.console.boundary import PROGRAM, discard_output, print_line
from s3fs_meta.console.boundary import report as report_error
from s3fs_meta.console.exits import FSCK_MEANINGS
from s3fs_meta.console.interruption import Remains
from s3fs_meta.console.ui import TerminalFront, confirmed
from s3fs_meta.counted import counted
from s3fs_meta.errors import CorruptionError, UsageError
from s3fs_meta.export import quarantine_list
from s3fs_meta.meta.lost_ranges import ATTRIBUTE
from s3fs_meta.model import Txg
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import LOCK_WAIT_S
from s3fs_meta.mount.stores import with_options
from s3fs_meta.objects import urls
from s3fs_meta.sync.host_state.state_dir import without_new_remains
from s3fs_meta.sync.volume import OpenOptions

HELP = CommandHelp(
    name="fsck",
    summary="Check a filesystem, and repair it.",
    description=(
        "Checks the metadata, the local cache and the listing of the bucket against each other; "
        "docs/design/invariants.md lists the checks. Without -n, -p or -y the command asks "
        "before it repairs; without a terminal it only reports. It also only reports if the "
        "filesystem is mounted on this host. Repairs are uploaded to the bucket at the end.",
    ),
    examples=(
        Example("s3fs-meta fsck -n s3://bucket/home", "report problems, and change nothing"),
        Example("s3fs-meta fsck -p s3://bucket/home", "make only safe repairs, as at boot"),
        Example(
            "s3fs-meta fsck --rebuild s3://bucket/home", "build new metadata if none can be read"
        ),
        Example(
            "s3fs-meta fsck -y --deep s3://bucket/home", "verify all packs, and make all repairs"
        ),
    ),
    exits=FSCK_MEANINGS,
)

_ONLY_ALL = (  # options that are valid only with -y
    "--delete-unknown",
    "--accept-superblock",
    "--end-at",
    "--publish-local",
    "--objects-from",
)
_NOT_CHANGED: Final = "nothing was changed"
_REPAIRING: Final = (
    "all repairs are undone, unless their upload had begun; it is safe to run fsck again"
)
# Without --verbose, fsck shows at most 10 findings per invariant and 10 notes.
_SHOWN_MAX = 10


AcceptSuperblock = Annotated[
    bool,
    typer.Option(
        "--accept-superblock",
        help="With -y: accept the superblock in the bucket even if this host has seen a newer one, "
        "or remembers the filesystem as encrypted.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The option that the user chose: -n, -p or -y."""

    mode: Mode
    ask: bool


Rebuild = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="If no image can be restored: build new metadata from the packs. Files get their "
        "names from intact pieces of an image; all other files are put into lost+found.",
    ),
]
EndAt = Annotated[
    int | None,
    typer.Option(
        "--end-at",
        metavar="TXG",
        min=0,
        help="With -y: abandon all transaction groups after TXG, even if another host wrote them. "
        "TXG is the last group that can be restored.",
    ),
]
PublishLocal = Annotated[
    bool,
    typer.Option(
        "--publish-local",
        help="With -y: if the last transaction group of this host is not in the bucket, "
        "upload the local state, even if another host may have written later groups.",
    ),
]
ObjectsFrom = Annotated[
    str | None,
    typer.Option(
        "--objects-from",
        metavar="URL|DIRECTORY",
        callback=given_text,
        help="With -y: restore missing or damaged objects in the bucket from a copy of it. "
        "The copy may be incomplete. Replaced objects are kept in the state directory.",
    ),
]


def fsck(
    url: options.Url,
    report_only: Annotated[bool, typer.Option("-n", help="Only report; change nothing.")] = False,
    safe: Annotated[
        bool,
        typer.Option("-p", help="Only recompute derived values, and remove leftovers of a crash."),
    ] = False,
    everything: Annotated[bool, typer.Option("-y", help="Make every possible repair.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Download and verify every pack, which is slow.")
    ] = False,
    delete_unknown: Annotated[
        bool,
        typer.Option(
            "--delete-unknown",
            help="With -y: delete packs of this filesystem to which no metadata refers.",
        ),
    ] = False,
    accept_superblock: AcceptSuperblock = False,
    rebuild: Rebuild = False,
    end_at: EndAt = None,
    publish_local: PublishLocal = False,
    objects_from: ObjectsFrom = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show each step and every finding.")
    ] = False,
    *,
    access: options.BucketOptions,
    unsafe_single_writer: options.UnsafeSingleWriter = False,
    force_takeover: options.ForceTakeover = False,
    json: options.Json = False,
) -> int:
    """Run ``s3fs-meta fsck``: check and repair a filesystem."""
    answer = _answer(report_only=report_only, safe=safe, everything=everything)
    for_all = (
        delete_unknown,
        accept_superblock,
        end_at is not None,
        publish_local,
        objects_from is not None,
    )
    _require_all(answer, for_all)
    copy = None if objects_from is None else objects_from_option.copy_of(objects_from, access.s3)
    _warn_without_effect(access.s3, url, *([] if copy is None else [copy.url]))
    plan = CheckPlan(
        place=targets.of_url(url, access.cachedir),
        s3=urls.options_of(url, access.s3),
        open=OpenOptions(
            force_takeover=force_takeover,
            unsafe_single_writer=unsafe_single_writer,
            lock_wait_s=LOCK_WAIT_S,
        ),
        wanted=FsckOptions(repair=answer.mode, deep=deep, delete_unknown=delete_unknown),
        accept_superblock=accept_superblock,
        verbose=verbose and not json,
        publish_local=publish_local,
        objects_from=copy,
        end_at=None if end_at is None else Txg(end_at),
    )
    if delete_unknown:
        _refuse_quarantined(plan.place, options.command("recover-state", *access.arguments, url))
    if rebuild and (report_only or safe):
        raise UsageError("--rebuild replaces the metadata, so it cannot be combined with -n or -p")
    with (
        interruption.explained(_NOT_CHANGED) as remains,
        without_new_remains(plan.place.state),
    ):
        if rebuild:
            return _rebuild(plan, access, remains, ask=not everything, json=json)
        return _checked(plan, access, remains, ask=answer.ask and not json, json=json)


def _answer(*, report_only: bool, safe: bool, everything: bool) -> _Answer:
    if report_only + safe + everything > 1:
        raise UsageError("-n, -p and -y cannot be combined")
    if everything:
        return _Answer(Mode.ALL, ask=False)
    if safe:
        return _Answer(Mode.SAFE, ask=False)
    return _Answer(Mode.REPORT, ask=not report_only and sys.stdin.isatty())


def _checked(
    plan: CheckPlan, access: options.BucketOptions, remains: Remains, *, ask: bool, json: bool
) -> int:
    try:
        return _check(plan, access, remains, ask=ask, json=json)
    except CorruptionError as exc:
        report_error(exc)
        return EXIT_LEFT


def _warn_without_effect(given: urls.S3Options, *places: str) -> None:
    """Print a warning if S3 options are given, but no URL refers to an S3 bucket."""
    warning = urls.without_effect(given, *places)
    if warning:
        print_line(PROGRAM, warning)


def _require_all(answer: _Answer, given: Sequence[bool]) -> None:
    """Raise UsageError for an option that needs -y, if -y was not given."""
    for option, is_given in zip(_ONLY_ALL, given, strict=True):
        if is_given and answer.mode is not Mode.ALL:
            raise UsageError(f"the option {option} needs -y")


def _refuse_quarantined(place: Target, recovery: str) -> None:
    """Raise UsageError if a quarantined state of this host may need unreferenced packs."""
    kept = quarantine_list.find_all(place.state)
    if kept:
        raise UsageError(
            f"the quarantined state {kept[0].path} may need packs that no other metadata needs;"
            f" copy its files with {recovery}, remove it, and run the command again"
        )


def _rebuild(
    plan: CheckPlan, access: options.BucketOptions, remains: Remains, *, ask: bool, json: bool
) -> int:
    """Rebuild metadata from the packs; print the result.

    Raises:
        UsageError: the user did not confirm; nothing was changed.
    """
    if ask and not confirmed(
        f"Make new metadata for {plan.place.url}? Names, directories, modes and links that are"
        " in no intact piece of an image are lost."
    ):
        raise UsageError("the rebuild was not confirmed (option -y); nothing was changed")
    with TerminalFront(quiet=json) as front:
        secret = access.secret(front.ask)
        remains.change("no object was deleted or damaged; it is safe to run fsck --rebuild again")
        made = trio.run(run_rebuild, plan, secret, front)
    if json:
        output.print_json({"url": plan.place.url, **made._asdict()})
    else:
        output.print_text(_rebuilt_line(made))
        _list(made.unreadable, len(made.unreadable), everything=plan.verbose)
    return EXIT_CORRECTED + (EXIT_LEFT if made.unreadable else 0)


def _rebuilt_line(made: Rebuilt) -> str:
    found = f"found {counted(made.files, 'file')} in {counted(made.packs, 'pack')}"
    if made.source is None:
        return f"{found}; all are in lost+found"
    source = f"from {made.source}, without {counted(made.missing_pieces, 'lost piece')}"
    if changelog_codec.parse_key(made.source) is not None:
        source = f"from the changes up to {made.source}"
    lost = ""
    if made.copied_blocks:
        lost = (
            f"; {counted(made.copied_blocks, 'intact block')} of packs with an unreadable index"
            f" {'was' if made.copied_blocks == 1 else 'were'} copied into new packs"
        )
    if made.lost_blocks:
        lost += (
            f"; {counted(made.lost_blocks, 'block')} of content in no readable pack"
            f" {'is now a hole' if made.lost_blocks == 1 else 'are now holes'}, which the attribute"
            f" {ATTRIBUTE.decode()} lists"
        )
    return (
        f"{found}; {made.named} have their names as of txg {made.txg}, {source}; all others"
        f" are in lost+found, and so is content that was written later{lost}"
    )


def _check(
    plan: CheckPlan, access: options.BucketOptions, remains: Remains, *, ask: bool, json: bool
) -> int:
    """Check the filesystem and print a report; if the user agrees, repeat with repairs."""
    with TerminalFront(quiet=json) as front:
        secret = access.secret(front.ask)
        if plan.wanted.repair is not Mode.REPORT:
            remains.change(_REPAIRING)
        report = trio.run(run_check, plan, secret, front)
        front.close()
        _show(plan, report, json=json)
        if ask and report.exit_status & EXIT_LEFT and confirmed("Repair?"):
            remains.change(_REPAIRING)
            repairing = replace(plan, wanted=replace(plan.wanted, repair=Mode.ALL))
            report = trio.run(run_check, repairing, secret, front)
            front.close()
            _show(plan, report, json=json)
    return report.exit_status


def _show(plan: CheckPlan, report: Report, *, json: bool) -> None:
    """Print a report; a closed pipe does not change the exit status."""
    try:
        _print(plan, report, json=json)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def _print(plan: CheckPlan, report: Report, *, json: bool) -> None:
    url = plan.place.url
    if json:
        output.print_json({"url": url, **report.as_json()})
        return
    complete = partial(with_options, url=url, options=plan.s3, state=plan.place.state)
    for verdict in report.verdicts:
        findings = [complete(str(finding)) for finding in verdict.examples]
        _list(findings, verdict.found, everything=plan.verbose)
    notes = [complete(note) for note in report.notes]
    _list(notes, len(notes), everything=plan.verbose)
    for line in report.lines():
        output.print_text(f"{url}: {complete(line)}")


def _list(lines: Sequence[str], number: int, *, everything: bool) -> None:
    """Print the lines of a report; print only the first lines of a long list."""
    shown = lines if everything else lines[:_SHOWN_MAX]
    for line in shown:
        output.print_text(f"  {line}")
    if number > len(shown):
        output.print_text(f"  … and {number - len(shown)} more")
