"""The section of docs/design/durability.md that says what damage costs, made from the rules.

python -m tests.damage_matrix.page [--check] docs/design/durability.md
"""

import argparse
import difflib
import sys
from pathlib import Path
from typing import Final

from tests.damage_matrix.damages import DAMAGES, KINDS
from tests.damage_matrix.entrances import ENTRANCES
from tests.damage_matrix.known import KNOWN, Known
from tests.damage_matrix.rules import ANY, RULES

BEGIN: Final = "<!-- Made by `make docs` from tests/damage_matrix; do not edit by hand. -->\n"
END: Final = "<!-- End of what `make docs` made. -->\n"

# The content that only this object holds: the maximum loss.
_COSTS: Final = {
    "superblock": "nothing",
    "superblock-copy": "nothing",
    "both superblocks": "everything, unless a host that has mounted it still has its state directory",
    "lease": "nothing: `fsck -y` makes it anew",
    "first changelog": "points in time that nothing else leads to: here 1 to 4",
    "middle changelog": "the same: here 3 and 4, as a level leads to 5",
    "changelog after the image": "nothing: levels from an older image take its place",
    "needed changelog": "what it and later changelogs changed, up to the next image, on hosts"
    " without local state",
    "last changelog": "what it changed, on hosts without local state",
    "part": "the same as its changelog",
    "level": "nothing: the changelogs take its place",
    "manifest": "nothing: an older image and the changelogs after it take its place",
    "piece": "nothing: as a manifest",
    "all manifests": "history, and names since the newest image; `fsck --rebuild -y` finds the rest",
    "pack": "the content of the blocks whose records are damaged, where no host has them cached",
    "pack of the past": "the same, at points in time of the past",
}


def section() -> str:
    """Return the section between its markers."""
    lines = [BEGIN, *_what_is_tried(), *_what_is_expected()]
    if KNOWN:
        lines += ["Not true yet:\n", *(f"- {_cells(one)}: {one.item}" for one in KNOWN), ""]
    return "\n".join([*lines, END])


def _what_is_tried() -> list[str]:
    return [
        "A test damages one object of a bucket, or all copies of one, in each of these ways,"
        " and then tries each entrance:\n",
        "| damage | |",
        "| --- | --- |",
        *(f"| {name} | {_first_line(make)} |" for name, make in DAMAGES.items()),
        "",
        "| entrance | |",
        "| --- | --- |",
        *(f"| {name} | {_first_line(enter)} |" for name, enter in ENTRANCES.items()),
        "",
    ]


def _what_is_expected() -> list[str]:
    return [
        "Whatever is damaged and wherever it is met: no traceback; bounded time and memory;"
        " no intact object is changed or deleted; every point in time to which intact objects lead"
        " can be restored afterwards, with every intact block of its content; what only reads"
        " changes nothing in the bucket.\n",
        "| object | its loss costs at most |",
        "| --- | --- |",
        *(f"| {kind} | {_COSTS[kind]} |" for kind in KINDS),
        "",
        "The first rule that covers object, damage and entrance decides what is expected:\n",
        "| object | damage | entrance | what happens | because |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {_named(rule.kinds)}{_sort(rule.encrypted)} | {_named(rule.damages)} |"
            f" {_named(rule.entrances)} | {rule.verdict.value} | {rule.why} |"
            for rule in RULES
        ),
        "",
    ]


def _cells(one: Known) -> str:
    words = (one.kinds, one.damages, one.entrances)
    return " × ".join(_named(some) for some in words) + _sort(one.encrypted)


def page(present: str) -> str:
    """Return a page with a newly generated section."""
    before, _, rest = present.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"the page has no line {END!r} after {BEGIN!r}"
    return before + section() + after


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").splitlines()[0].rstrip(".")


def _named(words: tuple[str, ...]) -> str:
    return "any" if words == ANY else "; ".join(words)


def _sort(encrypted: bool | None) -> str:
    return "" if encrypted is None else " (encrypted)" if encrypted else " (plain)"


def main() -> int:
    """Write the section; with --check, fail if it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("path", type=Path)
    wanted = parser.parse_args()
    present = wanted.path.read_text()
    made = page(present)
    if wanted.check:
        found = difflib.unified_diff(
            present.splitlines(), made.splitlines(), str(wanted.path), "generated", lineterm="", n=0
        )
        lines = list(found)
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        return 1 if lines else 0
    wanted.path.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
