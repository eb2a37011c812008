"""Fixtures for running the program as users run it."""

from tests.cli.conftest import empty, mounted, place, program

__all__ = ["empty", "mounted", "place", "program"]
