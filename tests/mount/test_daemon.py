"""Tests of starting the daemon in the background, with real processes."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.polling import PROCESS_S_MAX
from tests.programs import wait_until_gone

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]

_PRELUDE = """
import sys, os, time
from pathlib import Path

import pytest
import pytest

from s3fs_meta.mount.daemon import run_in_background
from s3fs_meta.errors import HeldError, PassphraseError

class Front:
    def notice(self, text): print("notice", text)
    def progress(self, what, done, total): print("progress", what, done, total)
    def ask(self, prompt): return "secret"
    def ready(self): pass

class Deaf(Front):
    def ask(self, prompt): raise PassphraseError("no terminal")

log = Path(sys.argv[1])
"""


def _run(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + textwrap.dedent(body), str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_S_MAX,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_mount_command_returns_when_the_daemon_is_ready(tmp_path: Path) -> None:
    """The daemon runs in its own session, with / as its working directory."""
    done = _run(
        tmp_path,
        """
        def body(front):
            os.close(release)
            front.notice("hello")
            front.progress("blocks", 1, 2)
            front.ready()
            sys.stdin.read()
            print("child", os.getpid() == os.getsid(0), os.getcwd(), flush=True)
            os.read(gate, 1)
            Path(sys.argv[1] + ".after").touch()

        gate, release = os.pipe()
        print(int(run_in_background(body, log, Front())))
        os.close(release)
        os.waitpid(-1, 0)
        """,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "notice hello\nprogress blocks 1 2\n0\n"
    assert (tmp_path / "log").read_text() == "child True /\n"
    assert (tmp_path / "log.after").exists()


def test_daemon_has_three_standard_streams_although_one_was_closed(tmp_path: Path) -> None:
    """The daemon opens /dev/null as the closed descriptor."""
    done = _run(
        tmp_path,
        """
        def body(front):
            Path(sys.argv[1] + ".found").write_text(
                " ".join(os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2))
            )
            front.ready()

        os.close(0)
        run_in_background(body, log, Front())
        os.waitpid(-1, 0)
        """,
    )

    assert done.returncode == 0, done.stderr
    found = (tmp_path / "log.found").read_text()
    assert found == f"/dev/null {tmp_path / 'log'} {tmp_path / 'log'}"


def test_mount_command_exits_with_the_error_of_the_daemon(tmp_path: Path) -> None:
    """The mount command prints the daemon's error in one line and exits with its status."""
    done = _run(
        tmp_path,
        """
        def body(front): raise HeldError("held by host 'a'")
        sys.exit(run_in_background(body, log, Front()))
        """,
    )

    assert (done.returncode, done.stderr) == (7, "s3fs-meta: held by host 'a'\n")


def test_log_that_cannot_be_opened_is_reported_once(tmp_path: Path) -> None:
    """The state directory may be on a disk that became read-only."""
    done = _run(
        tmp_path,
        """
        log.mkdir()
        sys.exit(run_in_background(lambda front: None, log, Front()))
        """,
    )
    assert (done.returncode, done.stderr.count("\n")) == (14, 1), done.stderr
    assert str(tmp_path / "log") in done.stderr


def test_exception_in_the_daemon_is_reported_and_its_traceback_is_logged(tmp_path: Path) -> None:
    """If the daemon has a bug, the mount command prints the path of the log with the traceback."""
    done = _run(
        tmp_path,
        """
        def body(front): raise RuntimeError("boom")
        sys.exit(run_in_background(body, log, Front()))
        """,
    )

    assert done.returncode == 1
    assert done.stderr == f"s3fs-meta: the mount failed because of a bug; see {tmp_path / 'log'}\n"
    assert "RuntimeError: boom" in (tmp_path / "log").read_text()


def test_mount_command_reports_a_daemon_that_exits_without_an_error(tmp_path: Path) -> None:
    """The mount command reports a daemon that exited before it was ready."""
    done = _run(
        tmp_path,
        """
        def body(front): os._exit(0)
        sys.exit(run_in_background(body, log, Front()))
        """,
    )

    assert done.returncode == 1
    assert "ended before it was ready" in done.stderr


def test_daemon_receives_the_passphrase_from_the_mount_command(tmp_path: Path) -> None:
    """The daemon asks the mount command for the passphrase, because only it has the terminal."""
    done = _run(
        tmp_path,
        """
        def body(front):
            front.notice(front.ask("Passphrase: "))
            front.ready()
        sys.exit(run_in_background(body, log, Front()))
        """,
    )

    assert (done.returncode, done.stdout) == (0, "notice secret\n")


def test_daemon_fails_if_the_mount_command_cannot_ask_for_the_passphrase(tmp_path: Path) -> None:
    """If the mount command cannot ask for the passphrase, the daemon exits with its error."""
    done = _run(
        tmp_path,
        """
        def body(front): front.ask("Passphrase: ")
        sys.exit(run_in_background(body, log, Deaf()))
        """,
    )

    assert (done.returncode, done.stderr) == (4, "s3fs-meta: no terminal\n")


def test_mount_command_reports_a_daemon_that_is_killed_during_the_prompt(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        import signal
        from s3fs_meta.console import boundary

        class Killing(Front):
            def notice(self, text): self.pid = int(text)
            def ask(self, prompt):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return "secret"

        def body(front):
            front.notice(str(os.getpid()))
            front.ask("Passphrase: ")

        sys.exit(int(boundary.run(lambda: run_in_background(body, log, Killing()))))
        """,
    )

    assert done.returncode == 1, done.stderr
    assert "the mount ended before it was ready" in done.stderr


def test_interrupted_mount_command_stops_the_starting_daemon(tmp_path: Path) -> None:
    """Ctrl-C while the daemon starts leaves no process."""
    done = _run(
        tmp_path,
        """
        import signal
        def end(number, _frame):
            print("ended", flush=True)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        def body(front):
            signal.signal(signal.SIGTERM, end)
            front.notice(str(os.getpid()))
            signal.pause()

        class Interrupting(Front):
            def notice(self, text):
                print(text)
                raise KeyboardInterrupt

        try:
            run_in_background(body, log, Interrupting())
        except KeyboardInterrupt:
            print(log.read_text(), end="")
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                print("no child")
        """,
    )

    assert done.stdout.splitlines()[1:] == ["ended", "no child"]


def test_daemon_of_a_killed_mount_command_ends_before_it_is_ready(tmp_path: Path) -> None:
    """A mount command that is killed, for example by timeout(1), leaves no process."""
    done = _run(
        tmp_path,
        """
        import signal
        def body(front):
            front.notice(str(os.getpid()))
            signal.pause()

        class Killed(Front):
            def notice(self, text):
                print(text, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        run_in_background(body, log, Killed())
        """,
    )

    wait_until_gone(int(done.stdout))


def test_ready_daemon_outlasts_its_mount_command(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        def body(front):
            front.notice(str(os.getpid()))
            front.ready()
            while not Path(sys.argv[1] + ".exited").exists():
                time.sleep(0.01)
            Path(sys.argv[1] + ".after").touch()

        sys.exit(run_in_background(body, log, Front()))
        """,
    )
    (tmp_path / "log.exited").touch()  # The mount command has exited.

    wait_until_gone(int(done.stdout.split()[1]))
    assert (tmp_path / "log.after").exists()


def test_stopped_mount_command_does_not_block_the_daemon(tmp_path: Path) -> None:
    """After Ctrl-Z, the mount command reads no messages, but a restore sends one for each txg."""
    done = _run(
        tmp_path,
        """
        import signal
        def body(front):
            parent = os.getppid()
            os.kill(parent, signal.SIGSTOP)
            for number in range(10_000):
                front.progress("changes", number, 10_000)
            front.progress("changes", 10_000, 10_000)
            front.notice("served")
            front.ready()
            os.kill(parent, signal.SIGCONT)

        sys.exit(run_in_background(body, log, Front()))
        """,
    )

    shown = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert shown[0] == "progress changes 0 10000"
    assert shown[-2:] == ["progress changes 10000 10000", "notice served"]
    assert len(shown) < 10_000


def test_notices_of_the_daemon_may_contain_line_breaks(tmp_path: Path) -> None:
    text = json.dumps("a\nb ü")
    done = _run(
        tmp_path,
        f"""
        def body(front):
            front.notice({text})
            front.ready()
        sys.exit(run_in_background(body, log, Front()))
        """,
    )

    assert done.stdout == "notice a\nb ü\n"
