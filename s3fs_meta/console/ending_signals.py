"""SIGTERM and SIGHUP as interrupts: a command that they end prints a line and exits with a status.

The default effect of these signals ends the process without a message. ``interruption`` handles
them only while a command works, and this module does so before and after.
"""

import signal
from types import FrameType


def interrupt() -> None:
    """Let SIGTERM and SIGHUP have the effect of SIGINT; a signal that is ignored stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Call the handler of SIGINT, because trio's handler interrupts no code of its event loop."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # the caller of the program ignores SIGINT
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
