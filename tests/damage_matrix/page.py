"""Generate the section "Data lost to damage" of docs/design/durability.md from the rules.

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
END: Final = "<!-- End of the section that `make docs` generates. -->\n"

# For each kind of object, the largest loss after damage to one object.
_COSTS: Final = {
    "superblock": "nothing",
    "superblock-copy": "nothing",
    "both superblocks": "everything, unless a host that mounted the filesystem still has its state",
    "lease": "nothing: `fsck -y` creates a new one",
    "first changelog": "points in time that only this changelog leads to; in the test, txgs 1 to 4",
    "middle changelog": "points in time that only this changelog leads to; in the test, txgs 3, 4",
    "changelog after the image": "nothing: levels after an older image replace it",
    "needed changelog": "its changes and the changes of later changelogs up to the next image,"
    " on hosts without local state",
    "last changelog": "its changes, on hosts without local state",
    "part": "the same as its changelog",
    "level": "nothing: its changelogs replace it",
    "manifest": "nothing: an older image and the changelogs after it replace it",
    "piece": "nothing: an older image and the changelogs after it replace it",
    "all manifests": "history; `fsck --rebuild -y` restores the current state from the chain, or the"
    " names of the newest image from its pieces if the start of the chain is deleted or damaged",
    "all images": "history; `fsck --rebuild -y` restores the current state from the chain if nothing"
    " from its start on is deleted or damaged",
    "all images, start of the chain": "history and all names; `fsck --rebuild -y` restores all content"
    " in `lost+found`",
    "all images, a pack": "the same as all images and the pack: a rebuild keeps the names of files"
    " whose content is lost",
    "pack": "the content of blocks whose records are damaged and that no host has cached",
    "kept point": "the name of the point; if the object is damaged and not deleted, objects that"
    " the point needs stay until `keep --drop`",
    "pack of earlier points": "the same as a pack, but only at earlier points in time",
}


def section() -> str:
    """Return the generated section of the page with its markers."""
    lines = [BEGIN, *_damages_and_entrances(), *_expectations()]
    if KNOWN:
        lines += ["Not true yet:\n", *(f"- {_cells(one)}: {one.item}" for one in KNOWN), ""]
    return "\n".join([*lines, END])


def _damages_and_entrances() -> list[str]:
    return [
        "A test damages one object of a bucket, or all copies of an object, in each of these ways."
        " Then it tries each operation:\n",
        "| damage | effect |",
        "| --- | --- |",
        *(f"| {name} | {_first_line(make)} |" for name, make in DAMAGES.items()),
        "",
        "| operation | description |",
        "| --- | --- |",
        *(f"| {name} | {_first_line(enter)} |" for name, enter in ENTRANCES.items()),
        "",
    ]


def _expectations() -> list[str]:
    return [
        "For every object, damage and operation, the test requires:\n",
        "- The program prints no traceback.",
        "- Time and memory are bounded.",
        "- No intact object is changed or deleted.",
        "- Every point in time to which intact objects lead can be restored afterwards, with every"
        " intact block of its content.",
        "- An operation that only reads changes nothing in the bucket.\n",
        "| object | maximum data loss |",
        "| --- | --- |",
        *(f"| {kind} | {_COSTS[kind]} |" for kind in KINDS),
        "",
        "The first rule that covers the object, the damage and the operation applies:\n",
        "| object | damage | operation | result | reason |",
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
    """Return the page with a new version of the generated section."""
    before, _, rest = present.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"the page must have the line {END!r} after {BEGIN!r}"
    return before + section() + after


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").splitlines()[0].rstrip(".")


def _named(words: tuple[str, ...]) -> str:
    return "any" if words == ANY else "; ".join(words)


def _sort(encrypted: bool | None) -> str:
    return "" if encrypted is None else " (encrypted)" if encrypted else " (plain)"


def main() -> int:
    """Write the page. With --check, fail if its generated section is outdated."""
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
