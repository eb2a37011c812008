"""Functions that fail, for use in place of real functions."""

from collections.abc import Callable
from typing import NoReturn


def raising(error: BaseException | type[BaseException]) -> Callable[..., NoReturn]:
    """Return a function that raises an error for any arguments."""

    def fail(*_positional: object, **_named: object) -> NoReturn:
        raise error

    return fail
