"""Fixtures for running the program as users do."""

from tests.cli.conftest import empty, mounted, place, program

__all__ = ["empty", "mounted", "place", "program"]
