"""Full collections are short."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from s3fs_meta.mount import collector


class Node:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    """Let the collector see everything again."""
    yield
    gc.unfreeze()


def test_older_objects_are_not_visited_again() -> None:
    """A collection visits later objects; earlier garbage has been freed."""
    garbage = weakref.ref(Node())
    collector.set_aside()

    assert garbage() is None
    assert gc.get_freeze_count() > 1000
    assert len(gc.get_objects()) < 1000


def test_what_comes_later_is_collected() -> None:
    """Cycles of requests must not stay."""
    collector.set_aside()
    later = weakref.ref(Node())

    gc.collect()

    assert later() is None
