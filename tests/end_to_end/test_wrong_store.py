"""Tests of the errors of commands with a wrong endpoint, bucket name or access key."""

import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.objects.s3_double import S3Double, error, s3_double
from tests.polling import PROCESS_S_MAX
from tests.programs import QuickProgram

pytestmark = pytest.mark.thorough

URL = "s3://photos-2019/home"
NOTICE = "has not responded yet"


def first_line(process: "subprocess.Popen[str]", *, notices: bool = False) -> str:
    """Return the first error or the first notice of a command, and interrupt the command."""
    assert process.stderr is not None
    with process:
        try:
            lines = iter(process.stderr.readline, "")
            return next(line for line in lines if notices or NOTICE not in line)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PROCESS_S_MAX)


def only_line(text: str) -> str:
    """Return the only line of *text*, except the notice that the store has not responded yet."""
    [line] = [one for one in text.splitlines() if NOTICE not in one]
    return line


@pytest.mark.parametrize("words", [("fsck", "-n"), ("status",), ("mkfs", "--plain")])
def test_closed_server_port_is_reported_after_the_first_attempt(
    quick: QuickProgram, words: tuple[str, ...]
) -> None:
    """On a busy machine, a notice that the store has not responded yet may be printed first."""
    with s3_double() as gone:
        endpoint = gone.url

    line = first_line(
        quick.begin(*words, "--endpoint-url", endpoint, URL, "--cachedir", quick.cachedir)
    )

    assert "cannot reach s3://photos-2019" in line
    assert f"cannot connect to {endpoint} (Connection refused)" in line


@pytest.mark.parametrize("words", [("fsck", "-n"), ("status",), ("mkfs", "--plain"), ("destroy",)])
def test_commands_report_a_time_limit_and_fail_if_the_server_port_is_closed(
    quick: QuickProgram, words: tuple[str, ...]
) -> None:
    """The first printed line contains the time limit, and the last line the URL and the server.

    On a busy machine, the notice that the store has not responded yet may be printed first. The
    time limit is then longer, because it includes the duration of the first attempt.
    """
    with s3_double() as gone:
        endpoint = gone.url

    done = quick.run(*words, "--endpoint-url", endpoint, URL)

    *waiting, last = done.stderr.splitlines()
    limit = re.compile(r"cannot reach s3://photos-2019\S*, trying for up to \d+ s: ")
    assert waiting
    assert limit.search(waiting[-1])
    assert all(NOTICE in line for line in waiting[:-1])
    assert last.startswith("s3fs-meta: s3://photos-2019")
    assert f"cannot connect to {endpoint} (Connection refused)" in last
    assert done.returncode == (8 if words[0] == "fsck" else ExitStatus.STORE)


def test_server_that_never_responds_is_reported_while_the_first_request_waits(
    quick: QuickProgram,
) -> None:
    """The kernel accepts the connection to the server, but no program reads the request."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        line = first_line(
            quick.begin(
                "fsck", "-n", "--endpoint-url", endpoint, URL, "--cachedir", quick.cachedir
            ),
            notices=True,
        )

    assert f"{URL} at {endpoint} has not responded yet, trying for up to" in line


def test_host_name_that_cannot_be_resolved_is_reported_immediately(quick: QuickProgram) -> None:
    """The host name of the endpoint is reserved by RFC 6761, so it cannot be resolved."""
    done = quick.run("fsck", "-n", "--endpoint-url", "http://nowhere.invalid", URL)

    assert done.returncode == 8  # fsck exits with status 8 for an operational error.
    line = only_line(done.stderr)
    assert line.startswith(f"s3fs-meta: {URL}: ")
    assert "the server's name in http://nowhere.invalid cannot be resolved" in line


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (404, "NoSuchBucket", "create the bucket or correct the URL"),
        (403, "InvalidAccessKeyId", "check the credentials"),
    ],
)
def test_error_about_refused_access_shows_the_bucket_and_the_endpoint(
    quick: QuickProgram, tmp_path: Path, status: int, code: str, advice: str
) -> None:
    """Each command that needs the bucket prints one line with URL, error code and endpoint."""
    (tmp_path / "mnt").mkdir()
    with s3_double() as double:
        double.answer_always(error(status, code))
        place = ["--endpoint-url", double.url]
        for words in (
            ["mkfs", "--plain", *place, URL],
            ["status", *place, URL],
            ["mount", "-o", f"endpoint_url={double.url}", URL, str(tmp_path / "mnt")],
        ):
            _require_one_line(quick, words, double, code, advice)


def _require_one_line(
    quick: QuickProgram, words: list[str], double: S3Double, code: str, advice: str
) -> None:
    done = quick.run(*words)
    assert done.returncode == ExitStatus.STORE_ACCESS, words
    line = only_line(done.stderr)
    assert line.startswith("s3fs-meta: s3://photos-2019"), words
    assert f": {code}; " in line, words
    assert advice in line, words
    assert line.endswith(f"(endpoint {double.url})"), words
