"""Fixtures of the soak's own tests."""

from tests.end_to_end.conftest import as_root

__all__ = ["as_root"]
