"""Take the screenshots for the browse guide from a small filesystem made for this purpose.

python -m tests.browse.screenshots docs/guide/browse

The program needs Chromium and /dev/fuse. Two runs give the same screenshots except for displayed
times, so run the program again only after changing a page.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.browse.limits import BROWSE_SAMPLE_S
from tests.browse import chromium
from tests.browse.chromium import Browser
from tests.browse.serving import Served, serving
from tests.private_mounts import make_private
from tests.programs import Program

PLACE: Final = Path(tempfile.gettempdir()) / "demo"  # The path shown in screenshots.
WIDE: Final = (1000, 700)
DESKTOP: Final = (1200, 900)
PHONE: Final = (390, 780)
_FRAME_LOADED: Final = """new Promise(done => {
  const frame = document.querySelector('iframe');
  const look = () => frame.contentDocument.querySelector('li')
    ? requestAnimationFrame(() => requestAnimationFrame(done)) : setTimeout(look, 10);
  look();
})"""
_SAMPLES: Final = 8  # The mount page shows 8 readings of the mount's statistics.


class Picture(NamedTuple):
    """The description of one screenshot of a page."""

    name: str
    path: str
    size: tuple[int, int]
    scheme: str
    script: str = ""  # JavaScript that runs before the screenshot is taken.


PICTURES: Final = (
    Picture(
        "time-line",
        "/",
        WIDE,
        "light",
        "document.querySelectorAll('.bar')[6].classList.add('chosen')",
    ),
    Picture("folder", "/at/24/", DESKTOP, "dark", _FRAME_LOADED),
    Picture("versions", "/versions/reports/figures.txt", PHONE, "light"),
    Picture("compare", "/compare/reports/figures.txt?old=3&new={txg}", WIDE, "light"),
    Picture("space", "/space/{txg}/?since=3", (WIDE[0], 1000), "dark"),
    Picture("mount", "/mount", PHONE, "dark"),
)


def _text(month: str, sum_: int) -> str:
    lines = [f"Figures of {month}", "", "rent         1200", "travel        310"]
    return "\n".join([*lines, f"books         {sum_ - 1510}", f"sum          {sum_}", ""])


def _fill(program: Program, home: Path) -> None:
    """Create files and points in time that look like those of a real user."""
    for name in ("reports", "photos/2025", "photos/2026", "music", "code/site", "letters"):
        (home / name).mkdir(parents=True)
    (home / "reports" / "figures.txt").write_text(_text("September", 1580))
    (home / "letters" / "to-ann.txt").write_text("Dear Ann,\n")
    program.ok("flush", home)
    for number in range(24):
        year = 2025 + number % 2
        (home / "photos" / str(year) / f"{number:03}.jpg").write_bytes(os.urandom(90_000 + number))
        (home / "code" / "site" / f"page{number}.html").write_text("<p>\n" * 400 * (number % 7))
        if number % 5 == 0:
            for track in range(number // 2):
                path = home / "music" / f"{number:02}-{track:02}.ogg"
                path.write_bytes(os.urandom(40_000))
        if number == 12:
            (home / "reports" / "figures.txt").write_text(_text("October", 1655))
        program.ok("flush", home)
    (home / "reports" / "plan.txt").write_text("1. sort the photos\n2. write to Ann\n")
    (home / "reports" / "figures.txt").write_text(_text("November", 1723))
    (home / "letters" / "to-ann.txt").rename(home / "letters" / "ann.txt")
    (home / "code" / "site" / "page3.html").unlink()
    program.ok("flush", home)


@contextmanager
def demo(place: Path) -> Iterator[Served]:
    """Mount a new filesystem with demo files, and serve its pages until the context ends."""
    place.mkdir(0o700)
    program, home = Program(place / "state"), place / "home"
    url = f"local://{place}/bucket"
    home.mkdir()
    try:
        program.ok("mkfs", "--plain", "--label", "home", url)
        program.ok("mount", url, home)
        try:
            _fill(program, home)
            txg = int(program.status(home)["chain"]["txg"])
            words = ["--cachedir", str(program.cachedir), str(home)]
            with serving(words, program.environment, home, txg) as served:
                yield served
        finally:
            program.ok("umount", home)
    finally:
        shutil.rmtree(place)


def take(browser: Browser, served: Served, picture: Picture) -> bytes:
    """Return a screenshot as PNG."""
    browser.look(*picture.size, picture.scheme)
    browser.go(served.url(picture.path.format(txg=served.txg)))
    if picture.script:
        browser.run(picture.script)
    return browser.screenshot()


def main(folder: Path, place: Path = PLACE) -> None:
    """Write all screenshots into a directory."""
    with demo(place) as served, chromium.started() as browser:
        browser.log_in(served)
        for number in range(_SAMPLES):
            for path in (served.tree / "photos" / "2025").iterdir():
                path.read_bytes()
            (served.tree / "music" / f"new-{number}.ogg").write_bytes(os.urandom(300_000 * number))
            time.sleep(BROWSE_SAMPLE_S)
        for picture in PICTURES:
            (folder / f"{picture.name}.png").write_bytes(take(browser, served, picture))


if __name__ == "__main__":
    make_private()  # Other processes must not inherit the mount.
    main(Path(sys.argv[1]))
