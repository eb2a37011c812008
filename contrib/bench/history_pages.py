"""The time from a click in ``s3fs-meta browse`` to the first reply and to the complete page.

While a slow page is made, the first reply is a waiting page, and the browser repeats the request.
Each page is requested twice, because the first request may have to restore a point in time.
"""

import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from typing import Any, Final

from contrib.bench import targets
from contrib.bench.subjects import TERMINATE_S_MAX, SubjectError, begin

ANSWER_S_MAX: Final = 0.3
_REQUEST_S_MAX: Final = 120.0
_OK: Final = 200
_ACCEPTED: Final = 202

Figures = dict[str, dict[str, float]]


class _Pages:
    """A client of a running ``browse`` command, which requests pages as a browser does."""

    def __init__(self, printed: str) -> None:
        self._host = printed.partition("//")[2].partition("/")[0]
        reply = self._ask(printed.partition(self._host)[2], {})
        given = reply.headers["Set-Cookie"]
        self._root = given.partition("Path=")[2]
        self._headers = {"Cookie": given.partition(";")[0], "Accept": "text/html"}

    def _ask(self, path: str, headers: dict[str, str]) -> HTTPResponse:
        with closing(HTTPConnection(self._host, timeout=_REQUEST_S_MAX)) as connection:
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            reply.read()
            return reply

    def click(self, path: str) -> tuple[float, float]:
        """Request a page; return the seconds until the first reply, and until the complete page."""
        start = time.perf_counter()
        reply = self._ask(self._root + path, self._headers)
        answered_s = time.perf_counter() - start
        while reply.status == _ACCEPTED:
            reply = self._ask(self._root + path, self._headers)
        if reply.status != _OK:
            raise SubjectError(f"the page {path} failed with HTTP status {reply.status}")
        return answered_s, time.perf_counter() - start

    def click_beside(self, slow: str, path: str) -> Figures:
        """Request a page repeatedly while a slow page is generated; return the longest times."""
        with ThreadPoolExecutor(1) as executor:
            made = executor.submit(self.click, slow)
            clicks = [self.click(path)]
            while not made.done():
                clicks.append(self.click(path))
            slow_s = made.result()[1]
        longest = {
            "first answer, s": max(answered_s for answered_s, _ in clicks),
            "page at first, s": slow_s,
            "page again, s": max(page_s for _, page_s in clicks),
        }
        return {"a folder while its list of changes is made": longest}


def measured(command: Sequence[str], earlier: int, name: str) -> Figures:
    """Return the seconds of several pages.

    Args:
        command: the command line for the bucket, with ``{}`` for the name of the command.
        earlier: a txg at most a day before the last one.
        name: a file with versions in the root directory.
    """
    folder = f"/at/{earlier}/"
    paths = {
        "time line": "/",
        "a folder a day ago": folder,
        "find from the root": f"/find/{earlier}/?name={name}",
        "versions": f"/versions/{name}",
        "changes since a day": f"/changes/{earlier}/",
        "space": f"/space/{earlier}/",
    }
    process = begin(*(word.format("browse") for word in command))
    try:
        assert process.stdout is not None, "the process was started with a pipe"
        pages = _Pages(process.stdout.readline().strip())
        figures: Figures = {}
        for title, path in paths.items():
            (first_answer_s, first_s), (answer_s, page_s) = pages.click(path), pages.click(path)
            figures[title] = {
                "first answer, s": max(first_answer_s, answer_s),
                "page at first, s": first_s,
                "page again, s": page_s,
            }
            # Measure this now, because the page of changes caches the comparison of /since.
            if path == folder:
                figures |= pages.click_beside(f"/since/{earlier}/", folder)
        return figures
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(TERMINATE_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wanted(figures: Figures) -> list[Any]:
    """Return the target for the time of the first reply to a click."""
    slowest_s = max(one["first answer, s"] for one in figures.values())
    return [targets.at_most("answer to a click", slowest_s, ANSWER_S_MAX, "s")]
