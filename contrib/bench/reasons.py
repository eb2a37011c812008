"""Why a target is missed, and what was tried: the words that no measurement can write.

The key is the benchmark's name and the target's words, as the page shows them. A target that is met
needs no entry; one that is missed without an entry says so on the page. Targets with the same reason
stand together.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Reason(NamedTuple):
    """What was found out about a missed target."""

    why: str  # the measured reason
    tried: str  # what was done about it, and what that gave


REASONS: Final[Mapping[tuple[str, str], Reason]] = {}
