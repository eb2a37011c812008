"""Find idioms of the project that are not plain English.

python contrib/lint/prose.py [PATH…]

The script prints the location of each idiom with a better wording. The exit status is 1 if an idiom
is found. `make lint` runs it on the files that PROSE in the Makefile lists.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SUFFIXES: Final = frozenset({".py", ".pyi", ".md", ".c", ".sql", ".toml", ".cfg", ".ini", ""})
# Each pattern matches whole words of a text in lower case.
PATTERNS: Final = {
    r"somebody|someone": "the caller, a process, a user, another host",
    r"(?<!\")nobody(?!\")|no one": "no process, no user, no host, or the passive",
    r"who(m)?ever": "any user, every process, the caller",
    r"(one|he|those) who": "a noun: the reader, the writer, hosts that",
    r"what (is|was|are|were) (only )?(here|there|gone|left|kept|held)": "dirty, cached, removed, rest",
    r"only here": "dirty, not yet in the bucket",
    r"to be had|(can|cannot|could|could not) be had": "is available, is unavailable",
    r"put off": "postponed",
    r"again and again|over and over": "repeatedly",
    r"in the place of": "instead of, replaces",
    r"(goes|gone|go) on from": "continues from",
    r"looks? again": "checks again",
    r"met a bug": "raised an unexpected exception",
    r"(tells?|told) (of|it|them|that|what|whether|which|who)": "reports, prints, distinguishes",
    r"set aside": "quarantined",
    r"of (one|a|that|this) moment": "at one point in time",
    r"that which": "a noun",
    r"some (tens|hundreds?|thousands?|megabytes)": "a few",
    r"kill of the": "if the daemon is killed, after the daemon was killed",
    r"(?<!there )(is|are) no (error|damage|proof|reason)": "is not, does not",
}
# The first line of a docstring is a sentence or a noun phrase, and never begins with these words.
FIRST_LINE: Final = re.compile(r'^ *[rbf]?"""(what|whether)\b', re.MULTILINE)
# A test name is a sentence with underscores between its words.
TEST_NAME: Final = re.compile(r"def test_\w+")
# The file prose.py is not checked, because it contains the patterns.
EXCEPT: Final = frozenset({"contrib/lint/prose.py"})
COMPILED: Final = [(re.compile(rf"({each})\b"), hint) for each, hint in PATTERNS.items()]
# One search for all patterns takes an eighth of the time that single searches take.
ANY: Final = re.compile(rf"\b({'|'.join(PATTERNS)})\b")


def offences(name: str, text: str) -> list[str]:
    """Return a line for each listed idiom in *text*."""
    words = TEST_NAME.sub(lambda hit: hit[0].replace("_", " "), text.lower())
    hits = [
        (hit.start(), f'"{hit[0]}": write {_better(words, hit.start())}')
        for hit in ANY.finditer(words)
    ]
    hits += [
        (hit.start(), "a summary that begins with a question word")
        for hit in FIRST_LINE.finditer(words)
    ]
    return [f"{name}:{1 + words.count(chr(10), 0, at)}: {problem}" for at, problem in sorted(hits)]


def _better(words: str, at: int) -> str:
    return next(hint for pattern, hint in COMPILED if pattern.match(words, at))


def main(paths: list[str]) -> int:
    """Check the files below *paths*, by default all of the project; return the exit status."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *paths], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    found = [f"{path}: no such file or folder" for path in paths if not (ROOT / path).exists()]
    found += [
        line
        for name in listed
        if name and Path(name).suffix in SUFFIXES and name not in EXCEPT and (ROOT / name).is_file()
        for line in offences(name, (ROOT / name).read_text(errors="replace"))
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
