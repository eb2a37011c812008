"""The end of a command by a signal: the cancellation of its work, and the message.

Owns: the handlers of SIGINT, SIGTERM and SIGHUP, the exception, and the conversion of
KeyboardInterrupt to it.
Does not know: commands.
The exception is not a KeyboardInterrupt, because the parser prints no message for that class.
``boundary`` prints the message and returns the status of an interrupted command.
"""

import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from types import FrameType
from typing import Final

import trio

from s3fs_meta.console import exits

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A terminal or timeout(1) may send the same signal twice within this time.
_REPEATED_S: Final = 1.0


class InterruptedCommandError(Exception):
    """A signal interrupted a command; the message describes the state that remains."""


class Remains:
    """The description of the state that would remain after an interruption."""

    def __init__(self, text: str) -> None:
        self.text = text

    def change(self, text: str) -> None:
        """Replace the description, because the command has made progress."""
        self.text = text


@contextlib.contextmanager
def explained(text: str) -> Iterator[Remains]:
    """Run a context; if a signal interrupts it, report the state that remains.

    Args:
        text: the first description, which the command may change.

    Raises:
        InterruptedCommandError: a signal interrupted the context.
    """
    remains = Remains(text)
    try:
        yield remains
    except BaseException as exc:
        if not any(isinstance(leaf, KeyboardInterrupt) for leaf in exits.leaves(exc)):
            raise
        # The event loop has stopped.
        raise InterruptedCommandError(remains.text) from exc  # noqa: ASYNC104


class _Canceller:
    """A signal handler that cancels a scope; after _REPEATED_S, signals have their usual effect."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()
        self._first_s: float | None = None
        self._before = {
            number: signal.getsignal(number)
            for number in _ENDING
            # nohup(1) ignores SIGHUP; None is a handler that Python cannot install again
            if signal.getsignal(number) not in {signal.SIG_IGN, None}
        }

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            self._token.run_sync_soon(self.scope.cancel)
        elif now_s - self._first_s > _REPEATED_S:
            self.restore()
            if number != signal.SIGINT:  # end the process, even if a thread hangs
                signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def install(self) -> None:
        """Install this object as the handler of each signal."""
        for number in self._before:
            signal.signal(number, self)

    def restore(self) -> None:
        """Install the original handler of each signal."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextlib.asynccontextmanager
async def cancelled_by_signals() -> AsyncIterator[None]:
    """Let a signal cancel the with-block, which can then release the lease in a shielded scope.

    Otherwise SIGTERM would kill the process, and the KeyboardInterrupt of SIGINT could stop any
    code in the middle. A second signal, more than _REPEATED_S later, has this usual effect, for a
    user who does not want to wait until the block ends.

    Raises:
        KeyboardInterrupt: a signal cancelled the block.
    """
    canceller = _Canceller()
    canceller.install()
    try:
        with canceller.scope:
            yield
    finally:
        canceller.restore()
    if canceller.scope.cancelled_caught:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let the first signal raise KeyboardInterrupt in a with-block that blocks the event loop.

    A cancellation would have no effect before the end of the block. ``cancelled_by_signals`` counts
    this signal as the first, and handles later ones, so that a repetition does not stop the cleanup.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}
    handled = {number: one for number, one in before.items() if callable(one)}

    def restore() -> None:
        for number, handler in handled.items():
            signal.signal(number, handler)

    def interrupt(number: int, frame: FrameType | None) -> None:
        restore()
        outer = before[signal.Signals(number)]
        if isinstance(outer, _Canceller):
            outer(number, frame)
        raise KeyboardInterrupt

    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        restore()
