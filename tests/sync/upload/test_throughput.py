"""Throughput: the measured speed of recent uploads."""

import pytest

from s3fs_meta.limits import UPLOADS_MEASURED, UPLOADS_MEASURED_S
from s3fs_meta.sync.upload.throughput import Speed, Throughput


def _measured(*uploads: tuple[float, float, int]) -> Throughput:
    """Return the throughput after uploads that are given as start, end and bytes."""
    made = Throughput()
    for begun_s, ended_s, sent_bytes in uploads:
        made.add(begun_s, ended_s, sent_bytes=sent_bytes, content_bytes=2 * sent_bytes)
    return made


def test_pauses_between_uploads_do_not_decrease_the_measured_speed() -> None:
    assert _measured((0, 2, 100), (8, 10, 300)).speed(10) == Speed(100, 200)


def test_time_of_concurrent_uploads_is_counted_once() -> None:
    made = _measured((0, 4, 100), (1, 3, 100), (2, 5, 100))

    assert made.speed(5) == Speed(60, 120)


def test_speed_is_unknown_before_the_first_upload_and_long_after_the_last_upload() -> None:
    assert _measured().speed(0) is None
    assert _measured((0, 1, 100)).speed(1 + UPLOADS_MEASURED_S) == Speed(100, 200)
    assert _measured((0, 1, 100)).speed(2 + UPLOADS_MEASURED_S) is None


def test_upload_limit_caps_the_estimated_speed() -> None:
    """The estimated speed is never higher than the upload limit."""
    assert Speed(100, 200).within(None) == Speed(100, 200)
    assert Speed(100, 200).within(100) == Speed(100, 200)
    assert Speed(100, 200).within(10) == Speed(10, 20)


def test_slow_upload_of_the_past_does_not_decrease_the_measured_speed() -> None:
    uploads = [(float(at), at + 0.5, 100) for at in range(100, 100 + UPLOADS_MEASURED)]

    made = _measured((0, 100, 1), *uploads)

    assert made.speed(uploads[-1][1]) == Speed(200, 400)
    assert made.sent_bytes == 1 + 100 * UPLOADS_MEASURED


def test_speed_is_unknown_after_an_upload_that_took_no_time() -> None:
    """An upload to a store in memory takes no time, so it has no speed."""
    assert _measured((1, 1, 100)).speed(1) is None


@pytest.mark.parametrize("now_s", [5.0, 20.0])
def test_measured_speed_changes_only_when_an_upload_ends(now_s: float) -> None:
    assert _measured((0, 5, 100)).speed(now_s) == Speed(20, 40)
