"""Test that the messages in docs/guide/troubleshooting.md are messages of the program."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "guide" / "troubleshooting.md"
SECTION: Final = "## Messages that commands print"

# Parts of messages that the program composes of several texts, or receives from another program.
COMPOSED: Final = frozenset(
    {
        "ahead of the clock of",
        "in the state directory belongs to user",
        "is unknown; upgrade s3fs-meta",
        "journal_mode=wal does not work on NFS",
        "only root may use the mount option 'dev'",
        "so txg",
        "target is busy",
        "the passphrase does not open this filesystem",
        "the passphrase was changed",
        "the recovery key was changed",
        "unmounted; the daemon had been killed (only on this host",
        "unmounted; the daemon had been killed, and everything is in the bucket",
    }
)


def _texts(code: ast.AST) -> Iterator[str]:
    """Yield the text of each string of a module; NUL replaces each value in an f-string."""
    for node in ast.walk(code):
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else "\0" for one in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _program() -> str:
    """Return the texts of all strings in the package, except docstrings."""
    found: list[str] = []
    for path in sorted((ROOT / "s3fs_meta").rglob("*.py")):
        code = ast.parse(path.read_bytes())
        for node in ast.walk(code):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
        found += _texts(code)
    return "\n".join(found)


def _is_text(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _parts() -> list[str]:
    """Return the parts of the listed messages that are between the values, shown as "…"."""
    section = PAGE.read_text().partition(SECTION)[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    return [part.strip(" :;,(") for message in messages for part in message.split("…")]


def test_every_listed_message_is_a_message_of_the_program() -> None:
    """A user searches the page for a message, so the page must contain the words of the program."""
    parts, program = _parts(), _program()
    missing = {part for part in parts if part not in program}

    assert len(parts) > 100
    assert missing == COMPOSED
