"""Aligned runs of txgs and their object keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3fs_meta.codec.history_index import RUNS as HISTORY
from s3fs_meta.codec.level import RUNS as LEVELS
from s3fs_meta.codec.txg_runs import TxgRuns
from s3fs_meta.model import Txg
from s3fs_meta.objects.contract import check_key

both_kinds = pytest.mark.parametrize("runs", [LEVELS, HISTORY], ids=lambda runs: str(runs.prefix))


@both_kinds
@given(txg=st.integers(1, 10**13))
def test_key_of_an_aligned_run_of_txgs_is_parsed(runs: TxgRuns, txg: int) -> None:
    for level in range(1, runs.levels_max + 1):
        last = runs.end_of(level, Txg(txg))
        assert runs.first_of(level, last) <= txg <= last
        assert level in runs.ends_at(last)
        key = runs.key_of(level, last)
        check_key(key)
        assert runs.parse_key(key) == (level, last)


@both_kinds
def test_key_of_an_unaligned_run_of_txgs_is_not_parsed(runs: TxgRuns) -> None:
    step = runs.fan_out
    assert runs.parse_key(f"{runs.prefix}1/{1:012d}-{step:012d}") == (1, step)
    for wrong in (
        f"{runs.prefix}1/{2:012d}-{step + 1:012d}",
        f"{runs.prefix}2/{1:012d}-{step:012d}",
        f"{runs.prefix}{runs.levels_max + 1}/{1:012d}-{step ** (runs.levels_max + 1):012d}",
        f"{runs.prefix}0/{1:012d}-{1:012d}",
        f"{runs.prefix}1/1-{step}",
        f"{runs.prefix}1/{1:012d}-{step:012d}/",
    ):
        assert runs.parse_key(wrong) is None
