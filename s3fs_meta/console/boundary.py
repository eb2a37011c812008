"""The outermost error handler: it prints one line for the user and returns an exit status.

Owns: handling every error that a command raises. Does not know: commands.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import Final, TextIO

import typer

from s3fs_meta.console import exits
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.interruption import InterruptedCommandError
from s3fs_meta.console.output_stream import ClosedOutputError, OutputError
from s3fs_meta.console.printable import printable
from s3fs_meta.errors import S3fsError, ThreadShortageError

PROGRAM: Final = "s3fs-meta"
_NO_DIRECTORY: Final = (
    "the working directory was removed or cannot be read; change to another directory"
)

Body = Callable[[], int | None]


def run(body: Body, *, program: str = PROGRAM) -> ExitStatus | int:
    """Run the body of a program and return its exit status.

    An expected error is printed as one line on standard error, and a bug as a traceback.
    """
    status = _reported(body, program)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # stdout is None if the caller closed it
                stream.flush()
        except OSError:  # the disk is full or the terminal closed; the first failure was reported
            _discard(stream)  # a failed flush at the exit would change the exit status
    return status


def _reported(body: Body, program: str) -> ExitStatus | int:
    """Run the body of a program; print an error that it raises; return the exit status."""
    if sys.flags.optimize:
        print_line(program, "refuses to run under python -O, because it needs its assertions")
        return ExitStatus.USAGE
    try:
        return _status(body)
    except InterruptedCommandError as exc:
        print_line(program, f"interrupted: {exc}")
        return ExitStatus.INTERRUPTED
    except (typer.Abort, KeyboardInterrupt):
        print_line(program, "interrupted")
        return ExitStatus.INTERRUPTED
    except typer.TyperException as exc:
        return _usage(program, exc)
    except BaseException as exc:  # noqa: ASYNC103  # the outermost frame
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in exits.leaves(exc)):
            # A trio nursery has wrapped KeyboardInterrupt in an exception group.
            print_line(program, "interrupted")
            return ExitStatus.INTERRUPTED  # noqa: ASYNC104  # the event loop has stopped
        error = _before_exit(exc)
        if not isinstance(error, Exception):
            raise
        return report(error, program)  # noqa: ASYNC104  # the event loop has stopped


def _status(body: Body) -> ExitStatus | int:
    """Run the body of a program and flush its output; return its exit status.

    If the reader of the output closes the pipe, the status of the body is returned, or DONE if the
    body could not end.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    status: ExitStatus | int = ExitStatus.DONE
    try:
        status = body() or ExitStatus.DONE
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as exc:  # noqa: ASYNC103  # the event loop has stopped
        if not all(map(_is_closed_pipe, exits.leaves(exc))):
            raise
        discard_output()
        return status  # noqa: ASYNC104  # the event loop has stopped
    if status == ExitStatus.INTERRUPTED:  # typer turns Ctrl-C into this status
        raise KeyboardInterrupt
    return status


def _is_closed_pipe(exc: BaseException) -> bool:
    """Return whether an error means that the reader of the output has closed the pipe."""
    return isinstance(_before_exit(exc), ClosedOutputError)


def _before_exit(exc: BaseException) -> BaseException:
    """Return the error that typer or rich has replaced with SystemExit, which they do for EPIPE."""
    replaced = exc.__context__ if isinstance(exc, SystemExit) else None
    return replaced if isinstance(replaced, BrokenPipeError) else exc


def discard_output() -> None:
    """Discard the output that cannot be written, and all further output.

    Call this if the disk is full, or if the reader, such as head, has closed the pipe.
    """
    _discard(sys.stdout)


def discard_messages() -> None:
    """Discard the messages on standard error that cannot be written, and all further messages."""
    _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, stream.fileno())
    os.close(null_fd)


def report(exc: BaseException, program: str = PROGRAM) -> ExitStatus:
    """Print an error to standard error and return its exit status."""
    found = list(map(_named, exits.leaves(exc)))
    known = [leaf for leaf in found if exits.status_of(leaf) is not ExitStatus.BUG]
    if len(known) < len(found):
        traceback.print_exception(exc, file=sys.stderr)
        print_line(program, "this is a bug; please report it with the lines above")
        return ExitStatus.BUG
    print_line(program, text_of(known[0]))
    return exits.status_of(known[0])


def _named(exc: BaseException) -> BaseException:
    """Return ThreadShortageError if an error is Python's report that no thread can be started."""
    if isinstance(exc, RuntimeError):
        from s3fs_meta.background_task import lacks_thread  # a slow import, which loads trio

        if lacks_thread(exc):
            return ThreadShortageError()
    return exc


def text_of(exc: BaseException) -> str:
    """Return the message of an error as one line."""
    if isinstance(exc, S3fsError):
        return _in_one_line(exc.message)
    if isinstance(exc, OutputError):
        return f"the result cannot be written to standard output: {exc.strerror}"
    if isinstance(exc, OSError) and exc.strerror:
        if not isinstance(exc.filename, (str, bytes, os.PathLike)):
            is_gone = exc.errno == errno.ENOENT and not _has_working_directory()
            return _NO_DIRECTORY if is_gone else exc.strerror
        return f"{os.fsdecode(exc.filename)}: {exc.strerror}"
    return _in_one_line(str(exc)) or type(exc).__name__


def _in_one_line(text: str) -> str:
    """Join the lines of a text; spaces inside a line stay, because a path may contain them."""
    return " ".join(line.strip() for line in text.splitlines()).strip()


def _has_working_directory() -> bool:
    """Return whether the working directory exists; getcwd(2) fails with an error without a path."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def print_line(program: str, text: str) -> None:
    """Print a line to standard error, prefixed with the name of the program.

    If the reader of standard error has closed the pipe, or the disk is full, the line is lost, and
    the command continues.
    """
    try:
        sys.stderr.write(f"{program}: {printable(text)}\n")
    except OSError:
        discard_messages()  # a failed flush at the exit would change the exit status


def _usage(program: str, exc: typer.TyperException) -> ExitStatus:
    """Print why the parser rejected the arguments; return the exit status."""
    format_message = getattr(exc, "format_message", None)
    text = format_message() if callable(format_message) else str(exc)
    if text:
        context = getattr(exc, "ctx", None)
        where = context.command_path if context is not None else program
        print_line(program, f"{_in_one_line(text)} (see: {where} --help)")
    return ExitStatus.USAGE
