"""Functions that fail, for use in place of real functions."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
import trio

# Python's report that no thread can be started.
REFUSED: Final = RuntimeError("can't start new thread")


def raising(error: BaseException | type[BaseException]) -> Callable[..., NoReturn]:
    """Return a function that raises an error for any arguments."""

    def fail(*_positional: object, **_named: object) -> NoReturn:
        raise error

    return fail


@contextlib.contextmanager
def no_threads() -> Iterator[None]:
    """Refuse all new threads, as at RLIMIT_NPROC, during the with-block."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trio.to_thread, "run_sync", raising(REFUSED))
        patched.setattr(trio.lowlevel, "start_thread_soon", raising(REFUSED))
        yield


def refuse_file(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Make every call that needs the inode of a given file fail with an errno."""

    def refuse(owner: object, call: str) -> None:
        real = getattr(owner, call)

        def checked(*paths: Any, **options: Any) -> Any:
            named = [path for path in paths if isinstance(path, (str, Path))]
            if any(Path(path).name == name for path in named):
                raise OSError(code, "refused", str(named[0]))
            return real(*paths, **options)

        monkeypatch.setattr(owner, call, checked)

    for call in ("open", "unlink", "rename"):
        refuse(os, call)
    refuse(Path, "stat")
