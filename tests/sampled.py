"""Parameters that fast tests sample and slow tests use completely."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], every: int) -> list[Any]:
    """Return *values* as parameters; all but each *every*-th one are marked slow."""
    return [
        value
        if number % every == 0
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow
        )
        for number, value in enumerate(values)
    ]
