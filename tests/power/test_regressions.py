"""Each way in which a cut of power ever broke a promise, by name, for ever."""

from pathlib import Path

from s3fs_meta.meta.pragmas import Pragmas
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.testing.operations import Act, Wish
from s3fs_meta.testing.power_cut import Exactly, PowerCut

from .conftest import Boots
from .recorded_run import judge, record

FILE = [Wish(Act.MAKE_FILE), Wish(Act.WRITE, 0, 0, 5, 1)]
FSYNC = Wish(Act.FSYNC)
WAL = Pragmas()


async def test_new_state_directory_is_found_again(
    template: MemoryStore, tmp_path: Path, boots: Boots
) -> None:
    """The names of new directories were never synced, so a new mount could lose all of it."""
    run = await record([*FILE, FSYNC], tmp_path, template, WAL)
    state = PowerCut(run.events).choose(Exactly(0))

    await judge(run, len(run.events), state, boots.next_home())
