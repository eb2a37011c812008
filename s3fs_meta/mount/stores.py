"""Opening and closing the store of a command, and adding the store's URL to errors.

Most errors of a store name only the key of an object, because the same code serves all stores.
If the URL or the endpoint is wrong, the user needs to see the URL. If an error suggests a command,
that command needs the S3 options and the cachedir of the failed command.
"""

import contextlib
import os
import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.console import exits
from s3fs_meta.console.boundary import PROGRAM, print_line
from s3fs_meta.errors import ControlError, FormatError, S3fsError, StoreError
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.objects import urls
from s3fs_meta.objects.metrics import CountingStore
from s3fs_meta.objects.retry import Charge, ignore_charge
from s3fs_meta.objects.urls import LocalAddress, S3Options
from s3fs_meta.sync.host_state import request_log
from s3fs_meta.sync.host_state.state_dir import require_own

_CLOSE_S_MAX = 10.0
S3_FLAGS = ("--endpoint-url", "--region", "--profile")  # options in the field order of S3Options
_NO_OPTIONS = S3Options()
# Matches a suggested command that needs a URL, with its options, unless a URL follows. A command
# with an option that takes a word, such as --cachedir, has its URL already.
_FLAG = r" (?!--(?:passphrase-file|endpoint-url|region|profile|cachedir)\b)-[a-z-]+"
_WITHOUT_URL = re.compile(
    rf"\bs3fs-meta (?:fsck(?:{_FLAG}(?:=[0-9]+)?)+|recover-state(?:{_FLAG})*|keep --list)"
    r"(?![a-z0-9=-]| -| \S+://)"
)
# Matches the end of a URL without quotes; punctuation may follow it. ``shlex.quote`` leaves these
# characters without quotes.
_END_OF_URL = r"(?![.,:]*[\w@%+=/-])"
# Matches the rest of a sentence about a command that another host runs.
_ON_OTHER_HOST = " on (?:a|the|that) host "


def _print(text: str) -> None:
    print_line(PROGRAM, text)


@contextlib.asynccontextmanager
async def opened_store(  # noqa: PLR0913 - settings of one store
    url: str,
    options: S3Options,
    *,
    make_root: bool = False,
    probe_only: bool = False,
    may_be_absent: bool = False,
    notify: Callable[[str], None] = _print,
    counts: Path | None = None,
    state: Path | None = None,
    charge: Charge = ignore_charge,
) -> AsyncIterator[CountingStore]:
    """Open the store at *url* for the duration of a context; its errors name the store.

    Args:
        url: URL of the store.
        options: S3 options; on a local store they only cause a warning.
        make_root: True to create the directory of a local store.
        probe_only: True if the URL may not be that of a store, because the caller only looks for a
            few objects there. No file of a local directory is changed.
        may_be_absent: True to treat a missing or empty directory as a store that cannot be reached.
        notify: shows a warning, or a message while the store cannot be reached.
        counts: the state directory in which to record billed requests; None to record nothing.
            Nothing is recorded if the directory has no filesystem's state when the context ends.
        state: the local state for commands in errors, see ``with_options``; default: *counts*.
        charge: called before each retry of a write or of a range read; see ``RetryingStore``.

    Raises:
        NotAFilesystemError: the directory of a local store does not exist.
        UsageError: the URL is invalid.
        SettingsError: the state directory belongs to another user.
        SilentDaemonError: the directory is in a mount whose daemon does not answer.

    Always yields to other tasks.
    """
    if counts is not None:
        await in_thread(require_own, counts)
    if isinstance(urls.parse(url), LocalAddress):
        await in_thread(require_answers, url, abandon_on_cancel=True)
    warning = urls.without_effect(options, url)
    if warning:
        notify(warning)
    options = urls.options_of(url, options)
    with naming_store(url, options, counts if state is None else state):
        store = urls.open_store(
            url,
            options,
            make_root=make_root,
            probe_only=probe_only,
            may_be_absent=may_be_absent,
            notify=notify,
            charge=charge,
        )
        try:
            yield store
        finally:
            with trio.move_on_after(_CLOSE_S_MAX, shield=True):
                if counts is not None:
                    await request_log.save(counts, store.meter)
                await store.close()


def require_answers(url: str) -> None:
    """Check the mounts that contain the directory of a local store, so that no access can hang.

    Raises:
        UsageError: the URL is invalid.
        SilentDaemonError: the directory is in a mount whose daemon does not answer.
    """
    address = urls.parse(url)
    if isinstance(address, LocalAddress):
        targets.require_answers([address.root])


@contextlib.contextmanager
def naming_store(
    url: str, options: S3Options = _NO_OPTIONS, state: Path | None = None
) -> Iterator[None]:
    """Prefix errors of the store with its URL; complete commands in errors as ``with_options``."""
    try:
        yield
    except BaseException as exc:
        for leaf in exits.leaves(exc):
            if isinstance(leaf, (StoreError, FormatError)) or (
                isinstance(leaf, ControlError) and exits.is_kind(leaf, StoreError, FormatError)
            ):
                leaf.put_before(url)
            if isinstance(leaf, S3fsError):
                leaf.reword(with_options(leaf.message, url, options, state))
        raise


def s3_arguments(options: S3Options) -> list[str]:
    """Return S3 options as arguments of a command."""
    given = zip(S3_FLAGS, options, strict=True)
    return [word for name, value in given if value is not None for word in (name, value)]


def options_of_mount(place: Target) -> S3Options:
    """Return the S3 options with which a filesystem was mounted, as far as its note shows them."""
    return S3Options(*map(targets.mount_flags(place).get, S3_FLAGS))


def with_options(
    text: str, url: str, options: S3Options = _NO_OPTIONS, state: Path | None = None
) -> str:
    """Return a message with the URL, its S3 options and the cachedir added to the commands in it.

    Modules that do not know the URL suggest ``s3fs-meta fsck``, ``recover-state`` and ``keep
    --list`` without a URL. The options precede the URL. A completed message stays unchanged.

    Args:
        text: the message.
        url: URL of the filesystem.
        options: the S3 options of the failed command.
        state: the local state that the message is about; None if the message is about none. A
            directory other than the default is added as ``--cachedir``, except to a command that
            another host runs.
    """
    if "s3fs-meta " not in text:
        return text
    text = _WITHOUT_URL.sub(lambda found: f"{found[0]} {shlex.quote(url)}", text)
    flags = s3_arguments(options)
    of_state = _cachedir_arguments(state)
    if not flags and not of_state:
        return text
    command = re.compile(
        rf"(s3fs-meta [a-z-]+(?: -[a-z-]+(?:=[0-9]+)?)*) (?=(?:{_argument(url.rstrip('/'))})"
        rf"(?P<host>{_ON_OTHER_HOST})?)"
    )

    def completed(found: re.Match[str]) -> str:
        added = flags if found["host"] else [*flags, *of_state]
        return " ".join([found[1], shlex.join(added)] if added else [found[1]]) + " "

    return command.sub(completed, text)


def _argument(url: str) -> str:
    """Return a pattern for a URL in a command: quoted or not, and with or without slashes at its end.

    The pattern does not match the beginning of a longer URL.
    """
    quoted = shlex.quote(f"{url} ").removesuffix(" '")
    return rf"{re.escape(quoted)}/*'(?!\")|{re.escape(url)}/*{_END_OF_URL}"


def _cachedir_arguments(state: Path | None) -> list[str]:
    """Return the option that selects the cachedir of a state directory; [] for the default."""
    if state is None or state.parent == Path(os.path.realpath(targets.own_cachedir())):
        return []
    return ["--cachedir", str(state.parent)]
