"""The program, run in less time."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from typing_extensions import override

from s3fs_meta.cli import entry
from tests.cli.conftest import Program


class QuickProgram(Program):
    """Runs commands in this process, which saves most of their time.

    Not mount, which must be a process of its own: it forks before there is any thread.
    """

    @override
    def run(
        self, *words: str | Path, module: str = "s3fs_meta", here: bool = True, text: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run one command; *here* adds --cachedir."""
        if words[0] == "mount" or module != "s3fs_meta" or text:
            return super().run(*words, module=module, here=here, text=text)
        arguments = [*map(str, words), *(["--cachedir", str(self.cachedir)] if here else [])]
        printed, said = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(said),
            mock.patch.dict(os.environ, self.environment, clear=True),
        ):
            status = entry.main(arguments)
        return subprocess.CompletedProcess(arguments, status, printed.getvalue(), said.getvalue())

    def begin(self, *words: str | Path) -> "subprocess.Popen[str]":
        """Start one command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "s3fs_meta", *map(str, words)],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
