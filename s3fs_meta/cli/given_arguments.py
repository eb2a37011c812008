"""The parsers of arguments that must not be empty.

Owns: refusing an empty path and an empty text. Does not know: commands, whether a path exists.
An empty argument is usually a shell variable without a value. ``Path("")`` is the working directory,
and an empty URL of a server would mean AWS.
"""

import os

import typer
from typer.models import TyperPath
from typing_extensions import override


class GivenPath(TyperPath):
    """A path that the parser does not access: stat(2) of a mount hangs if its daemon hangs."""

    @override
    def convert(
        self, value: "str | os.PathLike[str]", param: object, ctx: object
    ) -> "str | bytes | os.PathLike[str]":
        """Return the path in an argument; raise BadParameter for an empty path."""
        if not os.fspath(value):
            raise typer.BadParameter("the path is empty")
        return value


def given_text(text: str | None) -> str | None:
    """Return an argument, or None if it was omitted; raise BadParameter if it is empty."""
    if text == "":
        raise typer.BadParameter("the text is empty")
    return text


def given_texts(texts: list[str] | None) -> list[str] | None:
    """Return a list of arguments; raise BadParameter if one of them is empty."""
    for text in texts or []:
        given_text(text)
    return texts
