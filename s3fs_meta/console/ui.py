"""The user interface of a long command: notices, progress, a prompt for the passphrase.

Owns: the interface ``Front``, and its implementation on a terminal. Does not know: commands.
``mount.daemon`` implements ``Front`` for the terminal of another process.
Keeps: a command continues after its terminal is closed; messages are then discarded. The library
for progress bars is loaded with the first bar, because most commands and daemons show none.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from typing_extensions import Self

from s3fs_meta.console import passphrase_source
from s3fs_meta.console.boundary import PROGRAM, discard_messages, print_line
from s3fs_meta.console.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Front(Protocol):
    """The interface for progress, notices and prompts to a waiting user."""

    def notice(self, text: str) -> None:
        """Show a message that is not part of the command's result."""
        ...

    def progress(self, what: str, done: int, total: int) -> None:
        """Show the progress of the activity *what*."""
        ...

    def ask(self, prompt: str) -> str:
        """Ask the user for a secret; raise PassphraseError without a terminal."""
        ...

    def ready(self) -> None:
        """Stop showing progress, because the user no longer has to wait."""
        ...


class TerminalFront:
    """A front on standard error; progress bars are shown only on a terminal."""

    def __init__(self, *, quiet: bool = False, instead: str = passphrase_source.INSTEAD) -> None:
        """Prepare the front; show nothing.

        Args:
            quiet: True to show no progress bars.
            instead: alternatives to a prompt, for the error message without a terminal.
        """
        self._instead = instead
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._show_bars = not quiet and _is_terminal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._complete()
        self.close()

    def notice(self, text: str) -> None:
        """Print a line to standard error, above the progress bars."""
        if self._bars is not None:
            # Long lines are wrapped by the terminal, not broken, so a copied URL has no line break.
            with self._drawing():
                self._bars.console.print(
                    f"{PROGRAM}: {printable(text)}", markup=False, highlight=False, soft_wrap=True
                )
        else:
            print_line(PROGRAM, text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Update the progress bar of the activity *what*."""
        if self._show_bars:
            with self._drawing():
                self._draw(what, done, total)

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = _new_bars()
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        if total == 0:  # with nothing to do, the activity is complete
            done = total = 1
        self._bars.update(self._tasks[what], completed=done, total=total)

    def _complete(self) -> None:
        """Complete all progress bars after success, even if the last report is missing."""
        if self._bars is not None:
            with self._drawing():
                for task in self._bars.tasks:
                    self._bars.update(task.id, completed=task.total)

    def ask(self, prompt: str) -> str:
        """Ask the user for a secret on the terminal, without echo."""
        self.close()
        return passphrase_source.ask_terminal(prompt, self._instead)

    def ready(self) -> None:
        """Remove the progress bars from the terminal."""
        self.close()

    def close(self) -> None:
        """Restore the terminal; afterwards, this object can show progress again."""
        bars, self._bars = self._bars, None
        self._tasks.clear()
        if bars is not None:
            with self._drawing():
                bars.stop()
                sys.stderr.flush()

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """Run code that writes to the terminal; if it fails, discard this and further output."""
        try:
            yield
        except OSError:
            discard_messages()
            self._show_bars = False
            self.close()


def confirmed(question: str) -> bool:
    """Ask a question on standard error; return whether standard input contains the answer yes."""
    answer = answer_to(f"{printable(question)} [y/N]: ")
    return answer.strip().lower() in {"y", "yes"}


def answer_to(prompt: str) -> str:
    """Show a prompt on standard error; return the next line of standard input.

    Input that is not UTF-8 is no answer. Call this on the event loop: a thread that waits for input
    would not see Ctrl-C.
    """
    sys.stderr.write(prompt)
    sys.stderr.flush()
    try:
        answer = sys.stdin.readline()
    except UnicodeDecodeError:
        answer = ""
    if not answer.endswith("\n"):  # the input ended, so end the line of the question
        sys.stderr.write("\n")
    return answer


def _is_terminal() -> bool:
    """Return whether standard error shows progress bars; ``FORCE_COLOR`` is a setting of rich."""
    if sys.stderr is None:
        return False
    return sys.stderr.isatty() or bool(os.environ.get("FORCE_COLOR"))


def _new_bars() -> "Progress":
    from rich.console import Console  # imported late, because most commands show no bars
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
