"""Run commands in forks of a process that has already imported the program.

The import takes several times as long as most commands, and the tests run thousands of commands.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.loaded_program"])


def run(
    module: str, words: Sequence[str], environment: Mapping[str, str], text: str, s_max: float
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m module words…`` in its own session, and return output and status.

    Raises TimeoutExpired after *s_max* seconds.
    """
    command = [module, *words]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(text)
        process = _CONTEXT.Process(
            target=_run_module, args=(module, words, dict(environment), streams, os.getcwd())
        )
        process.start()
        process.join(s_max)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, s_max)
        printed, said = (path.read_text() for path in streams[1:])
    return subprocess.CompletedProcess(command, process.exitcode, printed, said)


def _run_module(
    module: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[Path],
    folder: str,
) -> None:
    """Run a module as the main program of this process; never return."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(streams):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    sys.argv = [module, *words]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
