"""Parameters of which fast tests use a sample, and slow tests all."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], every: int) -> list[Any]:
    """Return *values* as parameters, with the mark slow on all but each *every*-th one."""
    return [
        value
        if number % every == 0
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow
        )
        for number, value in enumerate(values)
    ]
