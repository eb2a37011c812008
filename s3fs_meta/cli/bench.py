"""``s3fs-meta bench``: how fast a directory is, for people."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.cli.workload import Result, Sizes, Workload, can_drop_caches
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import BENCH_BLOCK_BYTES_MAX, BENCH_FILES_MAX, BENCH_THREADS_MAX, MIB
from s3fs_meta.mount import mount_table
from s3fs_meta.mount.mount_table import Mounted
from s3fs_meta.option_syntax import parse_size

HELP = CommandHelp(
    name="bench",
    summary="Measure how fast a directory is: large files, small files, names.",
    description=(
        "Writes and reads large files, writes and reads small ones, asks for their attributes, "
        "creates empty ones and removes them, in a directory of its own that it makes in PATH and "
        "removes at the end, also when it is interrupted. PATH may be on any filesystem, to compare "
        "with; without it, it is the one mount of this host. Every thread has its own files.",
        "Writing large files ends with their fsync. Before reading, root drops the kernel's caches "
        "of the whole machine; others read what the kernel remembers. On a mount, what was written "
        "goes to the bucket like everything else.",
    ),
    examples=(
        Example("s3fs-meta bench /mnt/home", "how fast it is"),
        Example("s3fs-meta bench /var/tmp", "the same on the disk, to compare"),
        Example(
            "s3fs-meta bench --big-size 0 --files 10000 --threads 4 /mnt/home",
            "small files only, four programs at once",
        ),
    ),
    exits=exits_of(ExitStatus.LOCAL),
)


def bench(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="Where to measure.", show_default=False),
    ] = None,
    big_size: Annotated[
        str,
        typer.Option("--big-size", metavar="SIZE", help="Size of a large file; 0 leaves them out."),
    ] = "1G",
    block_size: Annotated[
        str,
        typer.Option("--block-size", metavar="SIZE", help="Of each read and write of it."),
    ] = "1M",
    small_size: Annotated[
        str, typer.Option("--small-size", metavar="SIZE", help="Size of a small file.")
    ] = "4K",
    files: Annotated[
        int,
        typer.Option(
            "--files",
            metavar="N",
            min=0,
            max=BENCH_FILES_MAX,
            help="Small files, and empty ones; 0 leaves them out.",
        ),
    ] = 1000,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", metavar="N", min=1, max=BENCH_THREADS_MAX, help="At the same time."
        ),
    ] = 1,
    json: options.Json = False,
) -> None:
    """Carry out the command."""
    sizes = Sizes(
        big_bytes=parse_size("--big-size", big_size, "1G"),
        block_bytes=parse_size("--block-size", block_size, "1M"),
        small_bytes=parse_size("--small-size", small_size, "4K"),
        files=files,
        threads=threads,
    )
    where = path or the_mount(mount_table.read())
    _check(where, sizes)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up, too
    with TerminalFront(quiet=json) as front:
        results = Workload(where, sizes, front.progress).run()
    if json:
        output.print_json(_facts(where, sizes, results))
        return
    if not can_drop_caches():
        output.print_text("kernel caches were kept: what is read may come from memory")
    output.print_columns(COLUMNS, [_row(result) for result in results])


COLUMNS = ("", "in all", "a second", "median", "99 %", "longest")


def the_mount(mounts: Iterable[Mounted]) -> Path:
    """Return where the only one that is ours is mounted.

    Raises:
        UsageError: there is none, or more than one.
    """
    found = [one.mountpoint for one in mounts if one.fs_type == mount_table.FS_TYPE]
    if len(found) != 1:
        which = f"mounted are {', '.join(found)}" if found else "nothing is mounted"
        raise UsageError(f"name a directory: {which}")
    return Path(found[0])


def _check(where: Path, sizes: Sizes) -> None:
    """Refuse what cannot be measured, before anything is written."""
    if not where.is_dir():
        raise UsageError(f"{where} is not a directory")
    if not 0 < sizes.block_bytes <= BENCH_BLOCK_BYTES_MAX:
        raise UsageError(f"--block-size: 1 to {output.human_bytes(BENCH_BLOCK_BYTES_MAX)}")
    if sizes.big_bytes % sizes.block_bytes:
        raise UsageError("--big-size is not so many times --block-size")
    if sizes.small_bytes > BENCH_BLOCK_BYTES_MAX:
        raise UsageError(f"--small-size: at most {output.human_bytes(BENCH_BLOCK_BYTES_MAX)}")
    if not sizes.big_bytes and not sizes.files:
        raise UsageError("neither large files nor small ones: nothing to measure")
    figures = os.statvfs(where)
    free_bytes = figures.f_bavail * figures.f_frsize
    if sizes.needed_bytes > free_bytes:
        needed, free = map(output.human_bytes, (sizes.needed_bytes, free_bytes))
        raise UsageError(f"{where} has {free} free, {needed} are needed")


def _at(result: Result, part: float) -> float:
    """Return a percentile in milliseconds."""
    last = len(result.latencies_s) - 1
    return result.latencies_s[min(int(last * part + 0.5), last)] * 1e3


def _row(result: Result) -> list[str]:
    if result.what.endswith("big files"):
        amount = output.human_bytes(result.size_bytes)
        rate = f"{result.size_bytes / MIB / result.seconds:,.0f} MiB"
    else:
        amount = f"{result.operations:,}"
        rate = f"{result.operations / result.seconds:,.0f}"
    times = (f"{_at(result, part):.3g} ms" for part in (0.5, 0.99, 1.0))
    return [result.what, amount, rate, *times]


def _facts(where: Path, sizes: Sizes, results: list[Result]) -> dict[str, Any]:
    return {
        "path": str(where),
        **sizes._asdict(),
        "caches_dropped": can_drop_caches(),
        "results": [
            {
                "what": result.what,
                "operations": result.operations,
                "size_bytes": result.size_bytes,
                "seconds": result.seconds,
                "operations_per_s": result.operations / result.seconds,
                "mib_per_s": result.size_bytes / MIB / result.seconds,
                "median_ms": _at(result, 0.5),
                "p99_ms": _at(result, 0.99),
                "max_ms": _at(result, 1.0),
            }
            for result in results
        ],
    }
