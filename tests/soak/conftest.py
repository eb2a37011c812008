"""Fixtures for the tests of contrib/soak."""

from tests.end_to_end.conftest import as_root

__all__ = ["as_root"]
