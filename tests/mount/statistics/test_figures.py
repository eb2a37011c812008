"""Tests of statistics of a mount; tests/cli/test_status.py tests those of real mounts."""

import errno
from typing import Any

import pytest

from s3fs_meta.codec.lease import KEY
from s3fs_meta.errors import StoreUnavailableError, TransientStoreError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.mount.statistics.figures import ratio
from s3fs_meta.objects.retry import RetryingStore, RetryPolicy
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.polling import until
from tests.sync.conftest import Power, figures_of, write_file


@pytest.mark.parametrize(("whole", "part", "expected"), [(3, 2, 1.5), (0, 2, 0.0), (3, 0, None)])
def test_compression_ratio_is_unknown_if_no_data_is_stored(
    whole: int, part: int, expected: float | None
) -> None:
    assert ratio(whole, part) == expected


async def test_commands_in_the_errors_of_a_mount_are_complete(plain: Power) -> None:
    async with plain.session(tasks=False) as session:
        parts: dict[str, Any] = {
            "upload": session.uploader,
            "chain": session.shipper,
            "image": session.imager,
            "compaction": session.compactor,
            "reclaim": session.reclaimer,
        }
        for part in parts.values():
            part.last_error = "damaged; run s3fs-meta fsck -y"

        found = figures_of(session)

    cachedir = session.volume.state_dir.path.parent
    wanted = f"damaged; run s3fs-meta fsck -y --cachedir {cachedir} local:///b"
    assert {found[part]["last_error"] for part in parts} == {wanted}


async def test_disk_without_an_answer_has_no_free_space_in_the_statistics(
    plain: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise OSError(errno.EIO, "the disk fails")

    async with plain.session(tasks=False) as session:
        assert figures_of(session)["disk"]["free_bytes"] > 0
        monkeypatch.setattr(session.cache.disk, "spare_bytes", fail)
        assert figures_of(session)["disk"]["free_bytes"] is None


async def test_remaining_time_of_an_upload_is_unknown_during_an_outage(plain: Power) -> None:
    faulty = FaultyStore(plain.store)
    store = RetryingStore(faulty, RetryPolicy(attempts_max=1))
    async with plain.session(tasks=False, store=store) as session:
        write_file(session, b"x" * 100_000)
        await session.flush()
        write_file(session, b"y" * 100_000)
        before = figures_of(session)
        faulty.fail("get", TransientStoreError("lease", "503"))
        with pytest.raises(StoreUnavailableError):
            await store.get(KEY, TEXT_OBJECT_BYTES_MAX)
        during = before

        def has_age() -> object:
            nonlocal during
            during = figures_of(session)
            return during["outage"]["age_s"] > 0

        await until(has_age)

    assert before["upload"]["left_s"] is not None
    assert during["upload"]["left_s"] is None
