"""Tests of the systemd units with a real systemd, which boots in a container."""

from pathlib import Path

import pytest

from contrib.systemd import container, trial


@pytest.mark.slow
@pytest.mark.mount
@pytest.mark.timeout(400)
def test_filesystems_stay_mounted_under_systemd_units(tmp_path: Path) -> None:
    """Mounts by systemd units survive a boot, SIGKILL, a watchdog timeout, a stop and a shutdown."""
    why = container.why_not()
    if why:
        pytest.skip(why)

    output = container.run(tmp_path)

    assert output.count("ok: ") == len(trial.STEPS) + 1
