"""Fixtures: the s3fs-meta command as users run it, and filesystems on which tests run it."""

from tests.cli.conftest import empty, mounted, place, program

__all__ = ["empty", "mounted", "place", "program"]
