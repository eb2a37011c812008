"""The action of SIGCHLD."""

import signal

from s3fs_meta.console import child_signal


def test_default_action_of_sigchld_is_restored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child_signal.restore()
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)
