"""A server that runs commands in forks of a process that has already imported the program.

The import takes several times as long as most commands, and the tests run thousands of commands.
"""

import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_REQUEST_BYTES_MAX: Final = 1 << 20
_CONTEXT.set_forkserver_preload(["tests.loaded_program"])


def run(
    module: str, words: Sequence[str], environment: Mapping[str, str], text: str, s_max: float
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m module words…`` in its own session; return output and status.

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
        printed, said = (path.read_text(errors="surrogateescape") for path in streams[1:])
    return subprocess.CompletedProcess(command, process.exitcode, printed, said)


def _run_module(
    module: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[Path],
    folder: str,
) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    _become(module, words, environment, [os.open(path, flags, 0o600) for path in streams], folder)


def _become(
    module: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    folder: str,
) -> None:
    """Run a module as the main program of this process; never return.

    Args:
        streams: the descriptors for stdin, stdout and stderr; this function closes them.
    """
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    sys.argv = [module, *words]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
        runpy.run_module(module, run_name="__main__", alter_sys=True)


@contextmanager
def serving(module: str, address: Path) -> Iterator[None]:
    """Run ``python -m module`` in a fork for each ``forked_client.py`` that sends its arguments."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen()
        server = _CONTEXT.Process(target=_serve, args=(module, listener))
        server.start()
    try:
        yield
    finally:
        server.terminate()
        server.join()


def _serve(module: str, listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps finished processes.
    while True:
        client, _address = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _answer(module, client)
        client.close()


def _answer(module: str, client: socket.socket) -> None:
    """Run a client's command in a child of this process; send the exit status to the client."""
    request, streams, _flags, _address = socket.recv_fds(client, _REQUEST_BYTES_MAX, 3)
    words, environment, folder = json.loads(request)
    child = os.fork()
    if child == 0:
        client.close()
        return _become(module, words, environment, streams, folder)
    _, status = os.waitpid(child, 0)
    client.send(b"%d" % (os.waitstatus_to_exitcode(status) % 256))
    os._exit(0)
