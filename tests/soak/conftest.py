"""What the runs need."""

from tests.mount.conftest import as_root

__all__ = ["as_root"]
