"""The sources of a passphrase: a file, the environment, the terminal.

Owns: the order of the sources, and the prompt. Does not know: keys.
Keeps: no passphrase is a command-line argument, because every user can read it (proc(5), cmdline).
"""

import contextlib
import getpass
import shlex
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from s3fs_meta.console import given_file, secret_environment
from s3fs_meta.errors import PassphraseError, UsageError
from s3fs_meta.sync.superblock.unlocking import Passphrase

# Maximum size of a passphrase; limits memory if the file is, for example, a disk image.
PASSPHRASE_BYTES_MAX: Final = 64 << 10

Ask = Callable[[str], str]
"""A function that shows a prompt and returns the typed line, or raises PassphraseError."""


INSTEAD: Final = f"--passphrase-file or ${secret_environment.VARIABLE}"
# For the command mount, also the mount option, because fstab(5) cannot contain --passphrase-file.
INSTEAD_FOR_MOUNT: Final = (
    f"--passphrase-file, passphrase_file= in fstab, or ${secret_environment.VARIABLE}"
)

from_environment: Final = secret_environment.passphrase


def ask_terminal(prompt: str, instead: str = INSTEAD) -> str:
    """Ask the user on the terminal, without echo.

    Args:
        prompt: text of the prompt.
        instead: alternatives to the terminal, for the error message.

    Raises:
        PassphraseError: the process has no terminal, or the user typed no valid text.
    """
    try:
        with open("/dev/tty", "rb"):
            pass
    except OSError as exc:
        why = f"no terminal is available for a passphrase prompt; use {instead}"
        raise PassphraseError(why) from exc
    try:
        return getpass.getpass(prompt, stream=sys.stderr)
    except EOFError as exc:  # the user pressed Ctrl-D, or closed the terminal
        raise _refused("no passphrase was typed") from exc
    except UnicodeDecodeError as exc:
        raise _refused(f"the typed passphrase is not valid {exc.encoding}; use {instead}") from exc


def _refused(why: str) -> PassphraseError:
    """Return an error about the text that the user typed, and end the line of the prompt."""
    with contextlib.suppress(OSError):
        sys.stderr.write("\n")
    return PassphraseError(why)


def existing(environment: str | None, file: Path | None, ask: Ask = ask_terminal) -> bytes:
    """Return the passphrase of an existing filesystem.

    Args:
        environment: the result of ``from_environment``.
        file: a file, which overrides the environment.
        ask: prompts the user if neither the file nor the variable is given.

    Raises:
        PassphraseError: the passphrase is empty, or the process has no terminal.
        UsageError: the file cannot be read.
    """
    if file is not None:
        return from_file(file)
    return _not_empty(environment if environment is not None else ask("Passphrase: "))


def secret(
    file: Path | None,
    ask: Ask = ask_terminal,
    during: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Passphrase:
    """Return the passphrase of an existing filesystem as a secret that is read when needed.

    Args:
        file: a file, which overrides the environment.
        ask: prompts the user if neither the file nor the variable is given.
        during: the context in which the secret is read or asked for, which may block.
    """
    environment, given = from_environment(), ""
    if file is not None:
        given = f"in the passphrase file {str(file)!r}"
    elif environment is not None:
        given = f"in ${secret_environment.VARIABLE}"

    def read() -> bytes:
        with during():
            return existing(environment, file, ask)

    return Passphrase(read, given=given)


def new(environment: str | None, file: Path | None, ask: Ask = ask_terminal) -> bytes:
    """Return the passphrase for a new filesystem; on a terminal the user types it twice.

    Raises:
        PassphraseError: the passphrase is empty, the two typed passphrases differ, or the process
            has no terminal.
        UsageError: the file cannot be read.
    """
    if file is not None:
        return from_file(file)
    if environment is not None:
        return _not_empty(environment)
    typed = _not_empty(ask("New passphrase: "))
    if _not_empty(ask("Again: ")) != typed:
        raise PassphraseError("the two passphrases differ")
    return typed


def from_file(file: Path) -> bytes:
    """Return the first line of a file without its line end.

    Raises:
        PassphraseError: the first line is empty, or longer than PASSPHRASE_BYTES_MAX.
        UsageError: the file cannot be read.
    """
    try:
        text = given_file.read(file, PASSPHRASE_BYTES_MAX + 2, is_line=True)
    except OSError as exc:
        raise UsageError(f"cannot read the passphrase file {str(file)!r}: {exc.strerror}") from exc
    passphrase = text.partition(b"\n")[0].rstrip(b"\r")
    if len(passphrase) > PASSPHRASE_BYTES_MAX:
        raise PassphraseError(
            f"the first line of the passphrase file {str(file)!r} is longer than"
            f" {PASSPHRASE_BYTES_MAX} bytes. If an earlier version created the filesystem with this"
            f" file, use the part that it read: head -c {PASSPHRASE_BYTES_MAX}"
            f" {shlex.quote(str(file))} > NEW"
        )
    if not passphrase:
        raise PassphraseError(f"the first line of the passphrase file {str(file)!r} is empty")
    return passphrase


def readable_by_others(file: Path | None) -> str:
    """Return a warning if other users can read a passphrase file, else "".

    A pipe or a device, such as /dev/stdin, does not store the passphrase, so its mode is irrelevant.
    """
    try:
        mode = 0 if file is None else file.stat().st_mode
    except OSError:
        return ""  # the error is reported when the file is read
    is_open = stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
    return f"other users can read the passphrase file {str(file)!r}: chmod 600" if is_open else ""


def _not_empty(text: str) -> bytes:
    if not text:
        raise PassphraseError(
            "the passphrase is empty; mkfs --plain creates a filesystem without encryption"
        )
    return text.encode(errors="surrogateescape")
