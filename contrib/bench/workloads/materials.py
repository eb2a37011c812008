"""The input of the workload steps: created once on the disk, identical in every run."""

import io
import json
import os
import random
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from contrib.bench.subjects import PROJECT

SEED: Final = 1
POOL_BYTES: Final = 4 << 20
FILES_PER_DIRECTORY: Final = 16
SIZE_MEDIAN_BYTES: Final = 4000  # Median size of source files; the mean size is 12 KB.
SIZE_SIGMA: Final = 1.4
SIZE_BYTES_MAX: Final = 1 << 20
NEEDLE: Final = "a_word_that_one_file_has"
REPOSITORY_SHARE: Final = 0.3  # Number of files in the repository, relative to the source tree.
COMMITS: Final = 5
C_FILES: Final = 40
C_FUNCTIONS: Final = 30
WHEELS: Final = ("bench-one", "bench-two", "bench-three")
WHEEL_FILES: Final = 200
NODE_PACKAGES: Final = 25
NODE_FILES: Final = 80
PHOTOS: Final = 40
PHOTO_SIZE: Final = (2400, 1600)
CALM_ENVIRONMENT: Final = {  # Programs must ignore the user's configuration.
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "bench", "GIT_AUTHOR_EMAIL": "bench@localhost",
    "GIT_COMMITTER_NAME": "bench", "GIT_COMMITTER_EMAIL": "bench@localhost",
    "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
    "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_UPDATE_NOTIFIER": "1",
}  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment variables for the commands of all steps."""
    return {**os.environ, **CALM_ENVIRONMENT}


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=cwd, env=environment())


def _text() -> bytes:
    """Return random text that compresses about as well as source code."""
    dice = random.Random(SEED)
    words = [
        "".join(dice.choices("abcdefghijklmnopqrstuvwxyz_", k=dice.randint(2, 12)))
        for _ in range(4000)
    ]
    ends = (" ", " ", " ", " ", "(", ") ", ", ", ";\n", " = ", "\n    ")
    return "".join(dice.choice(words) + dice.choice(ends) for _ in range(POOL_BYTES // 8)).encode()


def _sources(files: int) -> Iterator[tuple[Path, bytes]]:
    """Yield the path and the content of each file of a source tree; all files differ."""
    dice, text = random.Random(SEED), _text()
    for number in range(files):
        directory = number // FILES_PER_DIRECTORY
        path = Path(f"part-{directory // 64:02}", f"module-{directory % 64:02}", f"{number:05}.c")
        size = min(int(dice.lognormvariate(0, SIZE_SIGMA) * SIZE_MEDIAN_BYTES), SIZE_BYTES_MAX)
        start = dice.randrange(len(text) - SIZE_BYTES_MAX)
        yield path, b"/* file %d */\n" % number + text[start : start + size]


def source(place: Path, files: int) -> None:
    """Make a source tree, unless it already exists, and pack it into the archive ``source.tar``."""
    root = place / "source"
    for path, content in _sources(0 if root.exists() else files):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    root.mkdir(exist_ok=True)
    (root / "needle.c").write_text(f"int {NEEDLE};\n")
    _run("tar", "-cf", place / "source.tar", "-C", place, "source")


def repository(place: Path, files: int) -> None:
    """Make a bare git repository with some commits."""
    work = place / "commits"
    _run("git", "init", "--quiet", "--initial-branch=main", work)
    found = list(_sources(int(files * REPOSITORY_SHARE)))
    for commit in range(COMMITS):
        for path, content in found[commit::COMMITS] + found[: len(found) // 10]:
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_bytes(content + b"/* commit %d */\n" % commit)
        _run("git", "add", "--all", cwd=work)
        _run("git", "commit", "--quiet", "--message", f"commit {commit}", cwd=work)
    _run("git", "clone", "--quiet", "--bare", work, place / "repository.git")


def project(place: Path, _files: int) -> None:
    """Make a C project with a Makefile, and its archive ``project.tar``."""
    root = place / "project"
    root.mkdir()
    names = [f"part{number:02}" for number in range(C_FILES)]
    declared = "".join(f"int {name}(int);\n" for name in names)
    (root / "all.h").write_text(f"#include <stdio.h>\n#include <stdlib.h>\n{declared}")
    for name in names:
        functions = "".join(
            f"static int f{n}(int x) {{ int s = {n}; for (int i = 0; i < x; i++)"
            f" s += (i ^ {n}) % {n + 3}; return s > 9 ? s - x : abs(x); }}\n"
            for n in range(C_FUNCTIONS)
        )
        total = " + ".join(f"f{n}(x)" for n in range(C_FUNCTIONS))
        (root / f"{name}.c").write_text(
            f'#include "all.h"\n{functions}int {name}(int x) {{ return {total}; }}\n'
        )
    calls = " + ".join(f"{name}(3)" for name in names)
    (root / "main.c").write_text(f'#include "all.h"\nint main(void) {{ printf("%d", {calls}); }}\n')
    objects = " ".join(f"{name}.o" for name in (*names, "main"))
    (root / "Makefile").write_text(
        f"CFLAGS = -O1\nprogram: {objects}\n\tcc -o $@ $^\n%.o: %.c all.h\n\tcc $(CFLAGS)"
        " -c -o $@ $<\n"
    )
    _run("tar", "-cf", place / "project.tar", "-C", place, "project")


def wheels(place: Path, _files: int) -> None:
    """Make Python wheels that contain modules of the standard library."""
    root = place / "wheels"
    root.mkdir()
    library = Path(sysconfig.get_path("stdlib"))
    kinds = ("site-packages", "test", "tests", "lib2to3", "idlelib")
    modules = [path for path in sorted(library.rglob("*.py")) if not set(kinds) & set(path.parts)]
    for number, name in enumerate(WHEELS):
        package = name.replace("-", "_")
        with zipfile.ZipFile(root / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
            record = []
            for path in modules[number * WHEEL_FILES :][:WHEEL_FILES]:
                inside = f"{package}/{path.relative_to(library)}"
                wheel.write(path, inside)
                record.append(f"{inside},,")
            about = f"{package}-1.0.dist-info"
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
            )
            wheel.writestr(
                f"{about}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{about}/RECORD", "\n".join([*record, f"{about}/RECORD,,"]))


def node(place: Path, _files: int) -> None:
    """Make an npm project with a lock file; its packages are local archives."""
    root = place / "node"
    (root / "packages").mkdir(parents=True)
    text, names = _text(), [f"bench-{number:02}" for number in range(NODE_PACKAGES)]
    for number, name in enumerate(names):
        with tarfile.open(root / "packages" / f"{name}.tgz", "w:gz") as archive:
            about = json.dumps({"name": name, "version": "1.0.0", "main": "0.js"}).encode()
            members = {"package.json": about}
            for file in range(NODE_FILES):
                at = (number * NODE_FILES + file) * 1500 % (POOL_BYTES - 5000)
                members[f"lib/{file // 20}/{file}.js"] = b"/*" + text[at : at + 3000] + b"*/\n"
            for inside, content in members.items():
                member = tarfile.TarInfo(f"package/{inside}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    wanted = {name: f"file:packages/{name}.tgz" for name in names}
    about = {"name": "bench", "version": "1.0.0", "dependencies": wanted}  # type: ignore[assignment]
    (root / "package.json").write_text(json.dumps(about))
    cache = ["--cache", str(place / "npm-cache")]
    _run("npm", "install", "--package-lock-only", "--offline", "--no-audit", *cache, cwd=root)


def photos(place: Path, _files: int) -> None:
    """Make photographs of noise over gradients, as large as photographs from cameras."""
    root = place / "photos"
    root.mkdir()
    python = photo_python()
    assert python is not None, "the steps of photographs need Pillow"
    words = [python, "-m", "contrib.bench.workloads.programs", "photos", str(root)]
    subprocess.run(
        [*words, str(PHOTOS), *map(str, PHOTO_SIZE)], check=True, cwd=PROJECT, capture_output=True
    )


def photo_python() -> str | None:
    """Find a Python interpreter with Pillow (the extra "bench"); return None if there is none."""
    for python in (sys.executable, str(PROJECT / "build" / "bench-venv" / "bin" / "python")):
        words = [python, "-c", "import PIL.Image"]
        if (
            os.access(python, os.X_OK)
            and not subprocess.run(words, capture_output=True, check=False).returncode
        ):
            return python
    return None


MATERIALS: Final[Mapping[str, Callable[[Path, int], None]]] = {
    made.__name__: made for made in (source, repository, project, wheels, node, photos)
}
