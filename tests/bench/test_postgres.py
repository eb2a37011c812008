"""The benchmark ``postgres``, which runs pgbench on a mount."""

import os
import tempfile
from pathlib import Path

import pytest

from contrib.bench import postgres
from contrib.bench.disk import SEARCHABLE
from contrib.bench.names import DISK
from contrib.bench.subjects import PlainDirectory, SubjectError

pytestmark = pytest.mark.thorough

BEFORE_14 = """number of transactions actually processed: 30
tps = 101.500000 (including connections establishing)
tps = 102.500000 (excluding connections establishing)
"""
SINCE_14 = """latency average = 9.757 ms
initial connection time = 12.345 ms
tps = 409.966789 (without initial connection time)
"""


def test_pgbench_transaction_rate_excludes_the_connection_time() -> None:
    assert postgres.parsed_tps(BEFORE_14) == 102.5
    assert postgres.parsed_tps(SINCE_14) == 409.966789
    with pytest.raises(SubjectError, match="no transaction rate"):
        postgres.parsed_tps("starting vacuum...end.\n")


def test_benchmark_uses_the_newest_complete_postgres_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PostgreSQL version without its server program is skipped, even if it is the newest."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for version in ("9.6", "15", "16"):
        directory = tmp_path / version / "bin"
        directory.mkdir(parents=True)
        for name in postgres.PROGRAMS:
            if (version, name) != ("16", "initdb"):
                (directory / name).touch(0o755)
    places = [f"{tmp_path}/*/bin"]

    assert postgres.find_programs(places) == tmp_path / "15" / "bin"
    with pytest.raises(postgres.NotInstalledError):
        postgres.find_programs([f"{tmp_path}/16/*"])


def test_postgres_benchmark_is_skipped_if_postgres_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(postgres, "PROGRAMS", ("no-such-program",))

    figures = postgres.run(tmp_path, pg_scale=1, pg_seconds=1, rounds=1)

    assert figures == {"absent": ["PostgreSQL"]}
    assert (
        "no directory contains all programs of PostgreSQL: no-such-program"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_pgbench_run_stops_its_database_server() -> None:
    try:
        programs = postgres.find_programs()
    except postgres.NotInstalledError as exc:
        pytest.skip(str(exc))
    if os.geteuid() != 0:
        pytest.skip("only root can run the server as another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, SEARCHABLE)
        subject = PlainDirectory(DISK, Path(folder, "disk"))
        database = postgres.Database(programs, subject)
        taken = postgres.measured([database], 1, 1, 2)
        left = [path.name for path in Path(folder).rglob("postmaster.pid")]

    assert [len(values) for values in taken.values()] == [2]
    assert min(taken[DISK]) > 0
    assert left == []
