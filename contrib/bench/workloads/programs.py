"""Programs for workload steps without an installed command: databases, logs, mail, photos.

``python -m contrib.bench.workloads.programs STEP DIRECTORY [NUMBER…]`` runs a step in a directory,
and prints its duration in seconds, without the start of the interpreter.
"""

import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

LINE: Final = b"2024-01-01T00:00:00Z host program[123]: something happened, number %08d, as usual\n"
SMALL_BYTES: Final = 4096
MESSAGE_MEDIAN_BYTES: Final = 6000
MESSAGE_BYTES_MAX: Final = 200_000
THUMBNAIL: Final = (320, 320)


def inserts(directory: Path, mode: str, count: int) -> None:
    """Insert rows into an SQLite database, with one transaction per row."""
    with closing(sqlite3.connect(directory / f"{mode}.db", isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode={mode}")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, content TEXT)")
        for number in range(count):
            db.execute("INSERT INTO t VALUES (?, ?)", (number, f"row {number}" * 10))


def sqlite_delete(directory: Path, count: int) -> None:
    """Insert rows into an SQLite database with a rollback journal."""
    inserts(directory, "DELETE", count)


def sqlite_wal(directory: Path, count: int) -> None:
    """Insert rows into an SQLite database with a write-ahead log."""
    inserts(directory, "WAL", count)


def log(directory: Path, lines: int, lines_per_fsync: int) -> None:
    """Append lines to a log file, with an fsync after every *lines_per_fsync* lines."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    fd = os.open(directory / "service.log", flags, 0o644)
    for number in range(1, lines + 1):
        os.write(fd, LINE % number)
        if number % lines_per_fsync == 0:
            os.fsync(fd)
    os.close(fd)


def _write_synced(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, content)
    os.fsync(fd)
    os.close(fd)


def small_synced(directory: Path, count: int) -> None:
    """Write small files, with an fsync of each file."""
    for number in range(count):
        _write_synced(f"{directory}/synced-{number:05}", os.urandom(SMALL_BYTES))


def mail_deliver(directory: Path, count: int) -> None:
    """Deliver messages to a maildir: write each message to tmp, fsync it, rename it to new."""
    for name in ("tmp", "new", "cur"):
        (directory / "mail" / name).mkdir(parents=True)
    dice = random.Random(1)
    content = dice.randbytes(MESSAGE_BYTES_MAX // 2).hex().encode()
    for number in range(count):
        size = int(dice.lognormvariate(0, 1) * MESSAGE_MEDIAN_BYTES)
        name = f"{1_700_000_000 + number}.M{number}.host"
        message = b"Message-ID: <%d>\n\n" % number + content[: min(size, MESSAGE_BYTES_MAX)]
        _write_synced(f"{directory}/mail/tmp/{name}", message)
        os.rename(f"{directory}/mail/tmp/{name}", f"{directory}/mail/new/{name}")


def mail_read(directory: Path, count: int) -> None:
    """Read all new messages of the maildir, and mark each message as seen."""
    names = sorted(os.listdir(directory / "mail" / "new"))
    assert len(names) == count, f"{len(names)} of {count} messages"
    for name in names:
        Path(f"{directory}/mail/new/{name}").read_bytes()
        os.rename(f"{directory}/mail/new/{name}", f"{directory}/mail/cur/{name}:2,S")


def photos(directory: Path, count: int, width: int, height: int) -> None:
    """Make photographs of noise over gradients as JPEG files."""
    from PIL import Image  # Pillow is installed only with the extra "bench".

    red = Image.linear_gradient("L").resize((width, height))
    blue = Image.radial_gradient("L").resize((width, height))
    for number in range(count):
        noise = Image.effect_noise((width, height), 20 + number)
        photo = Image.merge("RGB", (red.rotate(number), noise, blue))
        photo.save(directory / f"photo-{number:03}.jpg", quality=85)


def thumbnails(directory: Path) -> None:
    """Make a thumbnail of each photograph."""
    from PIL import Image  # Pillow is installed only with the extra "bench".

    (directory / "thumbnails").mkdir()
    for path in sorted((directory / "photos").iterdir()):
        with Image.open(path) as photo:
            photo.thumbnail(THUMBNAIL)
            photo.save(directory / "thumbnails" / path.name)


PROGRAMS: Final[Mapping[str, Callable[..., None]]] = {
    each.__name__: each
    for each in (
        sqlite_delete, sqlite_wal, log, small_synced, mail_deliver, mail_read, photos, thumbnails,
    )
}  # fmt: skip


def main(argv: Sequence[str]) -> None:
    """Run one step; print the seconds that it took."""
    name, directory, *numbers = argv
    start = time.perf_counter()
    PROGRAMS[name](Path(directory), *map(int, numbers))
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(sys.argv[1:])
