"""Tests of statistics of a mount; tests/cli/test_status.py tests those of real mounts."""

from pathlib import Path

import pytest

from s3fs_meta.codec.lease import KEY
from s3fs_meta.errors import StoreUnavailableError, TransientStoreError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.mount.plan import make_plan
from s3fs_meta.mount.statistics.figures import figures, ratio
from s3fs_meta.objects.retry import RetryingStore, RetryPolicy
from s3fs_meta.options.settings import MountOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import until
from tests.sync.conftest import Power, write_file


@pytest.mark.parametrize(("whole", "part", "expected"), [(3, 2, 1.5), (0, 2, 0.0), (3, 0, None)])
def test_compression_ratio_is_unknown_if_no_data_is_stored(
    whole: int, part: int, expected: float | None
) -> None:
    assert ratio(whole, part) == expected


async def test_remaining_time_of_an_upload_is_unknown_during_an_outage(
    plain: Power, tmp_path: Path
) -> None:
    (tmp_path / "mnt").mkdir()
    plan = make_plan("local:///b", tmp_path / "mnt", MountOptions(cachedir=tmp_path / "cache"))
    faulty = FaultyStore(plain.store)
    store = RetryingStore(faulty, RetryPolicy(attempts_max=1))
    async with plain.session(tasks=False, store=store) as session:
        write_file(session, b"x" * 100_000)
        await session.flush()
        write_file(session, b"y" * 100_000)
        before = figures(session, plan)
        faulty.fail("get", TransientStoreError("lease", "503"))
        with pytest.raises(StoreUnavailableError):
            await store.get(KEY, TEXT_OBJECT_BYTES_MAX)
        during = before

        def has_age() -> object:
            nonlocal during
            during = figures(session, plan)
            return during["outage"]["age_s"] > 0

        await until(has_age)

    assert before["upload"]["left_s"] is not None
    assert during["upload"]["left_s"] is None
