"""A source tree to compile, and a background copy of files, for tests on a mount."""

import contextlib
import subprocess
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from typing_extensions import override

SOURCE = Path(sysconfig.get_path("stdlib")) / "email"

MAIN = """
#include <stdio.h>
#include "parts.h"
int main(void) { printf("%d\\n", PARTS); return 0; }
"""
MAKEFILE = """
OBJECTS = main.o PARTS_OBJECTS
program: $(OBJECTS)
\tgcc -o $@ $(OBJECTS)
%.o: %.c parts.h
\tgcc -c -o $@ $<
"""


def run(*command: str | Path, here: Path) -> str:
    """Run a program, which must succeed; return its output."""
    done = subprocess.run(command, cwd=here, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_project(folder: Path, parts: int) -> None:
    """Write a small C program in several files."""
    folder.mkdir()
    names = [f"part{number}" for number in range(parts)]
    for number, name in enumerate(names):
        (folder / f"{name}.c").write_text(f"int {name}(void) {{ return {number}; }}\n")
    declared = "\n".join(f"int {name}(void);" for name in names)
    (folder / "parts.h").write_text(
        f"{declared}\n#define PARTS {' + '.join(f'{name}()' for name in names)}\n"
    )
    (folder / "main.c").write_text(MAIN)
    objects = " ".join(f"{name}.o" for name in names)
    (folder / "Makefile").write_text(MAKEFILE.replace("PARTS_OBJECTS", objects))


def modes(root: Path) -> dict[str, int]:
    """Return the modes of all files below a directory."""
    return {str(path.relative_to(root)): path.lstat().st_mode for path in root.rglob("*")}


class Copying(threading.Thread):
    """A thread that copies files one by one until a copy fails."""

    def __init__(self, sources: Sequence[Path], target: Path) -> None:
        super().__init__()
        self.sources, self.target = sources, target
        self.done: list[tuple[str, Path]] = []  # The name and source of each completed copy.

    @override
    def run(self) -> None:
        """Copy the files one after another until a copy fails."""
        number = 0
        with contextlib.suppress(OSError):
            while True:
                source = self.sources[number % len(self.sources)]
                name = f"{number}-{source.name}"
                (self.target / name).write_bytes(source.read_bytes())
                self.done.append((name, source))
                number += 1


@contextlib.contextmanager
def copying(sources: Sequence[Path], target: Path) -> Iterator[Copying]:
    """Copy files in a thread until a copy fails; the end of the context waits for the failure."""
    thread = Copying(sources, target)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()
