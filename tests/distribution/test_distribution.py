"""Tests of the sdist, of the wheel built from it, and of the files that the wheel installs."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from contrib.docs import man_pages
from contrib.setup import release
from tests.docs.pages import blocks_of
from tests.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_NOT_SOURCES: Final = shutil.ignore_patterns(
    ".git",
    ".venv",
    "build",
    "dist",
    "generated",
    "*.egg-info",
    "*.so",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
)
_BASH: Final = "declare -F _s3fs_meta && complete -p s3fs-meta"


class Installed(NamedTuple):
    """A clean environment with the wheel and the packages that the tests need."""

    path: Path
    wheel: Path
    sdist: Path

    def run(self, *words: str | Path) -> str:
        """Run a program of the environment outside the sources, and return its output."""
        environment = {"HOME": str(self.path), "PATH": os.environ["PATH"]}
        command = [str(self.path / "bin" / words[0]), *map(str, words[1:])]
        done = subprocess.run(
            command, cwd=self.path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the sdist, build the wheel from the sdist, and install the wheel."""
    folder = tmp_path_factory.mktemp("distribution")
    sources, built, path = folder / "sources", folder / "dist", folder / "venv"
    shutil.copytree(ROOT, sources, ignore=_NOT_SOURCES, symlinks=True)
    for kind in ("man", "completion"):
        _python("-m", "contrib.docs.reference", f"--{kind}", sources / "generated" / kind)
    _python("-m", "build", "--outdir", built, sources)
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    venv.create(path, with_pip=True)
    made = Installed(path, wheel, sdist)
    made.run("pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    # The .pth file adds the test packages, but not the editable installation of s3fs-meta.
    [packages] = path.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def _python(*words: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_installs_the_program_with_man_pages_and_shell_completion(
    installed: Installed,
) -> None:
    version = release.present_version()

    release.check_installed(installed.path, version)

    where = installed.run("python", "-I", "-c", "import s3fs_meta; print(s3fs_meta.__file__)")
    assert where.startswith(str(installed.path))
    assert installed.run("s3fs-meta", "--version") == f"s3fs-meta {version}\n"
    assert "MOUNTPOINT" in installed.run("s3fs-meta", "mount", "--help")


def test_installed_program_creates_and_checks_a_filesystem(
    installed: Installed, tmp_path: Path
) -> None:
    """The package contains the SQL files, the price table and all other data files."""
    (tmp_path / "bucket").mkdir()
    url, state = f"local://{tmp_path}/bucket", ("--cachedir", tmp_path / "state")

    installed.run("s3fs-meta", "mkfs", "--plain", url, *state)
    installed.run("s3fs-meta", "fsck", "-n", url, *state)

    assert "AWS" in installed.run(
        "python",
        "-I",
        "-c",
        "from s3fs_meta.mount.statistics import prices; print(prices.default().name)",
    )


def test_every_man_page_is_installed(installed: Installed) -> None:
    pages = installed.path / "share" / "man"

    found = {page.name: page.read_text() for page in pages.glob("man?/*")}

    assert found == man_pages.pages()


def test_bash_loads_the_installed_completion_script(installed: Installed) -> None:
    script = installed.path / "share/bash-completion/completions/s3fs-meta"
    done = subprocess.run(
        ["bash", "--norc", "-c", f". {script} && {_BASH}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[:1]) == (0, ["_s3fs_meta"])


def test_documented_commands_create_and_remove_links_to_the_man_pages(
    installed: Installed, tmp_path: Path
) -> None:
    """The documented commands create links to the man pages below $HOME, and remove the links."""
    [link] = [one for one in blocks_of(ROOT / "docs/start/install.md") if "readlink" in one]
    uninstall = (ROOT / "docs/guide/upgrading.md").read_text()
    [remove] = [line for line in uninstall.splitlines() if line.startswith("rm -f ~/.local/share")]
    environment = {"HOME": str(tmp_path), "PATH": f"{installed.path}/bin:{os.environ['PATH']}"}

    def run(commands: str) -> list[Path]:
        subprocess.run(["bash", "-euc", commands], check=True, env=environment)
        return [path for path in tmp_path.rglob("*") if path.is_symlink()]

    linked = run(link)
    pages = {path.name for path in linked if path.is_file() and path.suffix in {".1", ".8"}}
    assert pages == set(man_pages.pages())
    for script in (
        "bash-completion/completions/s3fs-meta",
        "zsh/site-functions/_s3fs-meta",
        "fish/vendor_completions.d/s3fs-meta.fish",
    ):
        assert (tmp_path / ".local/share" / script).is_file()
    assert run(remove) == []


def test_uninstalling_the_package_removes_every_file(installed: Installed) -> None:
    """Uninstalling the package in a copy of the environment removes every file of the program."""
    copy = installed.path.with_name("copy")
    shutil.copytree(installed.path, copy, symlinks=True)
    subprocess.run(
        [copy / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "s3fs-meta"],
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(copy)},
    )

    assert [path for path in copy.rglob("*s3fs*") if path.exists()] == []
