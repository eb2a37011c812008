"""The size of the history index: at most a quarter of the size of its changelogs."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power
from tests.sync.history.index_matches import index_all

pytestmark = pytest.mark.thorough

NOW_NS = 1_760_000_000_000_000_000


class Work:
    """Simulated workloads on files without content."""

    def __init__(self, session: Session) -> None:
        self.db = session.db
        self.rnd = random.Random(1)
        self.now_ns = NOW_NS
        self.files: list[tuple[Ino, bytes]] = []

    def make(self, name: bytes) -> None:
        """Create a file in the root directory."""
        self.now_ns += 10**6
        ino = inodes.create(self.db, 0o100644, 1000, 1000, ROOT_INO, self.now_ns).ino
        dentries.add(self.db, ROOT_INO, name, ino)
        inodes.change_directory(self.db, ROOT_INO, self.now_ns, entries=1)
        self.files.append((ino, name))

    def touch(self, ino: Ino) -> None:
        """Change the size and the times of a file."""
        self.now_ns += self.rnd.randrange(10**9)
        inodes.set_times(
            self.db, ino, ctime_ns=self.now_ns, mtime_ns=self.now_ns, atime_ns=self.now_ns
        )
        inodes.set_size(self.db, ino, self.rnd.randrange(10**6), 0)

    def untar(self) -> None:
        """Create many files in one txg, as the extraction of an archive does."""
        for _ in range(50):
            self.make(b"source_file_%d.c" % len(self.files))

    def edit(self) -> None:
        """Change a few of many files, as users edit documents."""
        while len(self.files) < 2000:
            self.make(b"document %d.txt" % len(self.files))
        for _ in range(10):
            self.touch(self.rnd.choice(self.files)[0])

    def log(self) -> None:
        """Append repeatedly to one log file."""
        if not self.files:
            self.make(b"log")
        self.touch(self.files[0][0])

    def temporary(self) -> None:
        """Create files with random names, and remove these files a few txgs later."""
        for _ in range(10):
            self.make(b"tmp%08x.swp" % self.rnd.randrange(1 << 32))
        while len(self.files) > 40:
            ino, name = self.files.pop(0)
            dentries.remove(self.db, ROOT_INO, name)
            inodes.delete(self.db, ino)


@pytest.mark.parametrize("kind", [Work.untar, Work.edit, Work.log, Work.temporary])
async def test_history_index_has_at_most_a_quarter_of_the_size_of_changelogs(
    power: Power, kind: Callable[[Work], None]
) -> None:
    async with power.session("a", tasks=False) as session:
        work = Work(session)
        for _ in range(3 * HISTORY_FAN_OUT):
            session.db.begin()
            kind(work)
            await session.shipper.ship(anyway=True)
        await index_all(session)
    sizes: Counter[str] = Counter()
    for key, data in power.store.objects.items():
        sizes[key.partition("/")[0]] += len(data)

    assert 0 < sizes["history"] <= sizes["changelog"] / 4
