"""Aligned runs of txgs, and the keys of the objects that describe one run each.

Owns: the alignment of runs and the form of the names. Does not know: the content of the objects.

    <prefix><n>/<first txg>-<last txg>     fan_out^n txgs; the last txg is a multiple of fan_out^n
"""

import re
from dataclasses import dataclass
from functools import cached_property

from s3fs_meta.codec.changelog import NUMBER_MAX, TXG
from s3fs_meta.codec.image import TXG_DIGITS
from s3fs_meta.model import ObjectKey, Txg


@dataclass(frozen=True)
class TxgRuns:
    """The runs for one kind of object: a run on level n has ``fan_out ** n`` txgs."""

    prefix: str  # key prefix shared by all objects of this kind, with a final slash
    fan_out: int  # number of runs on a level that form one run on the next level
    levels_max: int  # number of levels; at most 9, because a key has one digit for the level

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(f"{self.prefix}([1-{self.levels_max}])/{TXG}-{TXG}", re.ASCII)

    def first_of(self, level: int, last: Txg) -> Txg:
        """Return the first txg in the run on *level* that ends with *last*."""
        return Txg(last - self.fan_out**level + 1)

    def ends_at(self, txg: Txg) -> range:
        """Return the levels that have a run with *txg* as its last txg, in ascending order."""
        level = 0
        while level < self.levels_max and txg > 0 and txg % self.fan_out ** (level + 1) == 0:
            level += 1
        return range(1, level + 1)

    def end_of(self, level: int, txg: Txg) -> Txg:
        """Return the last txg in the run on *level* that contains *txg*."""
        step: int = self.fan_out**level
        return Txg(-(-txg // step) * step)

    def key_of(self, level: int, last: Txg) -> ObjectKey:
        """Return the object key of the run on *level* that ends with *last*."""
        assert level in self.ends_at(last), "a run of this level must end with an aligned txg"
        first = self.first_of(level, last)
        return ObjectKey(f"{self.prefix_of(level)}{first:0{TXG_DIGITS}d}-{last:0{TXG_DIGITS}d}")

    def prefix_of(self, level: int) -> str:
        """Return the prefix shared by the keys of all objects on one level."""
        return f"{self.prefix}{level}/"

    def parse_key(self, key: str) -> tuple[int, Txg] | None:
        """Return the level and the last txg in an object key, or None if the key is not valid."""
        match = self._pattern.fullmatch(key)
        if match is None or not 0 < int(match[3]) <= NUMBER_MAX:
            return None
        level, last = int(match[1]), Txg(int(match[3]))
        return (
            (level, last)
            if level in self.ends_at(last) and self.key_of(level, last) == key
            else None
        )
