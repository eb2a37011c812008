"""Test parameters, of which fast test runs use a sample and slow test runs use all."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], every: int) -> list[Any]:
    """Return *values* as test parameters; mark all as slow except one in every *every* values."""
    return [
        value
        if number % every == 0
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow
        )
        for number, value in enumerate(values)
    ]
