"""Tests of SIGTERM and SIGHUP during the start of a command, and inside the event loop."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio

from s3fs_meta.console import ending_signals, secret_environment

SIGNALS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """Give the signals their default effect, because nohup(1) may have started the tests."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_interrupts_like_ctrl_c(number: signal.Signals) -> None:
    ending_signals.interrupt()

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_interrupts_the_event_loop_only_between_its_steps(number: signal.Signals) -> None:
    """An exception inside the event loop would end the program with a message about a bug."""
    steps: list[str] = []

    @trio.lowlevel.enable_ki_protection
    def protected() -> None:
        signal.raise_signal(number)
        steps.append("protected step")

    async def command() -> None:
        protected()
        await trio.sleep_forever()

    ending_signals.interrupt()

    with pytest.raises(KeyboardInterrupt):
        trio.run(command)
    assert steps == ["protected step"]


def test_signal_interrupts_a_command_for_which_ctrl_c_is_ignored() -> None:
    """A shell without job control starts a background command so that it ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ending_signals.interrupt()

    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_ignored_signal_stays_ignored() -> None:
    """nohup(1) makes a command ignore SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    ending_signals.interrupt()

    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


_SIGNALLED = """
import os, signal, sys
from importlib import abc
from s3fs_meta.cli import start

class Finder(abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number:d})

sys.meta_path.insert(0, Finder())
sys.argv = ["s3fs-meta", *{words!r}]
start.program()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "module",
    ["s3fs_meta.console.secret_environment", "s3fs_meta.cli.entry", "s3fs_meta.cli.{0}"],
)
@pytest.mark.parametrize(("command", "status"), [("fsck", 32), ("reclaim", 130)])
def test_signal_at_the_start_of_a_command_is_reported(
    number: signal.Signals, module: str, command: str, status: int
) -> None:
    """The line and the status are those of an interrupted command, from its first import on."""
    words = [command, "local:///nowhere"]
    script = _SIGNALLED.format(module=module.format(command), number=number, words=words)

    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {secret_environment.VARIABLE: "secret"},
    )

    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.startswith("s3fs-meta: interrupted")
    assert done.stderr.count("\n") == 1
