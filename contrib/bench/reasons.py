"""Why a target is missed, and what was tried: the words that no measurement can write.

The key is the benchmark's name and the target's words, as the page shows them. A target that is met
needs no entry; one that is missed without an entry says so on the page. Targets with the same reason
stand together.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Reason(NamedTuple):
    """What was found out about a missed target."""

    why: str  # the measured reason
    tried: str  # what was done about it, and what that gave


_CEILING: Final = Reason(
    "one third of what is beyond the ceiling is SQLite, its recording of changes and its log; the "
    "rest is the interpreter, spread over the handlers of three or four requests: no function of "
    "ours takes more than a twentieth. The direct way to take requests halved the ceiling's own "
    "time; against pyfuse3's own way, which every other program has, create and stat reach it",
    "rows of inodes stay in memory and are written once in a group; a request costs one coroutine; "
    "sixteen modules of this path compiled to C with mypyc: create 85 instead of 80 us of processor "
    "time, stat 27 instead of 23, rename 100 instead of 105, unlink 78 instead of 98, so it was left "
    "out",
)
_SMALL: Final = Reason(
    "each file with content has a block: four statements more, a file on the local disk, and when it "
    "is uploaded some 90 us on the loop and 80 us in threads, which falls into the turns of others",
    "blocks lie beside their neighbours in one directory: making one takes 18 us instead of 77 on a "
    "new disk; their files stay open",
)
_WRITING: Final = Reason(
    "from the fifth second on what was written is hashed, packed and put into the bucket on the same "
    "disk and the same two cores, which the do-nothing filesystem has not to do; the first GiB, "
    "before anything is uploaded, takes 1.0 to 1.2 times as long as there",
    "neighbouring blocks in one directory, files kept open, no second look at the rows: 0.39 to 0.63; "
    "the kernel asks for capabilities once for a file: 0.90",
)
_RANDOM: Final = Reason(
    "a request of 4 KiB costs 6 us more than the 10 of the ceiling: rows of the file and of the "
    "block, the state of the cache, the time of access; when the machine is busy it was 0.6 to 0.7",
    "where a block is is remembered while no row changes, its file stays open, a single block takes "
    "a way of its own without lists, one coroutine for each request; the first write into an "
    "uploaded block takes over its file instead of copying it: from 0.33 to 0.79 of the ceiling",
)
_TREES: Final = Reason(
    "SQLite: deleting, or adding, the two rows of a name, recording them and making a changeset; a "
    "script that does nothing else took as long. The machine ran at about half of the speed that it "
    "has when it is alone, at which a removal made 124,000 names a second",
    "performance.md, Trees, has what was tried",
)

REASONS: Final[Mapping[tuple[str, str], Reason]] = {
    ("sequential", "write: speed against do-nothing"): _WRITING,
    ("random", "read: rate against do-nothing"): _RANDOM,
    ("random", "write: rate against do-nothing"): _RANDOM,
    ("trees", "clone"): _TREES,
    ("trees", "rm"): _TREES,
    ("trees", "the command rm returns in"): Reason(
        "half of it is an interpreter that does nothing, most of the rest loading modules of the "
        "standard library (typing, socket, re, json); the request itself takes 5 ms. The machine ran "
        "at about half of its speed: when it is alone the command takes 0.08 s",
        "a way of its own for rm without options, which loads neither the parser of the command line "
        "nor tables nor an event loop, and its modules compiled once, as pip does: 0.59 to 0.12 s; "
        "typer without pydantic, for all other commands: a fifth of a second less",
    ),
    **{
        ("metadata", f"{what}: speed against do-nothing"): _CEILING
        for what in ("create", "stat", "rename", "unlink")
    },
    **{
        ("peers", f"{what}: speed against do-nothing"): _CEILING
        for what in ("create", "mkdir", "link", "stat", "rename", "unlink")
    },
    ("peers", "create and write 4 KiB: speed against do-nothing"): _SMALL,
    ("peers", "rate of small files against empty ones"): _SMALL,
    ("s3_read", "sequential cold read, of plain range requests"): Reason(
        "processor time: plain requests only receive, and two cores serve S3, too; the daemon takes "
        "3.3 ms per MiB, of which receiving is 0.9, verifying and unpacking 0.3, writing to the "
        "cache 0.4, reading from it and answering the kernel 1.0",
        "one request for 8 MiB instead of one for each block, in the order of the reader, six at "
        "once (10.3 to 2.0 s for 512 MiB); answers written into memory of their size instead of "
        "joined with the interpreter lock held (1.55 s, of which plain requests take 0.7)",
    ),
    ("upload_stall", "a stat during uploads, 99 %, of idle"): Reason(
        "the processors are busy: a filesystem that does nothing, asked in turns, waits as many times "
        "longer than idle (11 to 14, where this one waits 11 to 13)",
        "a native client instead of boto3, a shorter switch interval of the interpreter, a shorter "
        "slice of the scheduler for the loop: no difference; one batch at a time instead of two: "
        "3.5 instead of 4.4 ms, and two thirds of the throughput; decision 11 has the figures",
    ),
}
