"""The compiled part, and generated pages where `make man` wrote them; the rest is in setup.cfg."""

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.dist_info import dist_info
from setuptools.errors import SetupError

LIBFUSE = "3.13"  # has fuse_session_custom_io
EXTENSION = Path("s3fs_meta/fuse/fuse_intercept.c")
SUM = hashlib.sha256(EXTENSION.read_bytes()).hexdigest()  # fuse/extension.py has it, too


def pkg_config(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask pkg-config about libfuse."""
    return subprocess.run(
        ["pkg-config", *arguments, "fuse3"], capture_output=True, text=True, check=False
    )


def words(option: str) -> list[str]:
    """Return compiler or linker arguments for libfuse; none without pkg-config, which is reported."""
    return pkg_config(option).stdout.split() if shutil.which("pkg-config") else []


def require_tools() -> None:
    """Check for what the compiled extension, and pyfuse3, are built with.

    Raises:
        SetupError: something is missing; one line names the packages of Debian and Ubuntu.
    """
    missing = []
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        missing += ["gcc", "libc6-dev"]
    if shutil.which("pkg-config") is None:
        missing.append("pkg-config")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("python3-dev")
    if "pkg-config" in missing or pkg_config("--exists").returncode:
        missing.append("libfuse3-dev")
    elif pkg_config(f"--atleast-version={LIBFUSE}").returncode:
        found = pkg_config("--modversion").stdout.strip()
        raise SetupError(
            f"s3fs-meta needs libfuse {LIBFUSE} or later (Debian 12, Ubuntu 24.04); found {found}"
        )
    if missing:
        raise SetupError(
            "s3fs-meta has a compiled extension, and these packages are missing to build it; run:"
            f" apt-get install {' '.join(missing)}"
        )


class Metadata(dist_info):
    """The first step of an installation: fails before pip builds pyfuse3, with less clear words."""

    def run(self) -> None:
        """Check, then write the metadata."""
        require_tools()
        super().run()


class Build(build_ext):
    """The step that compiles."""

    def run(self) -> None:
        """Check, then compile."""
        require_tools()
        super().run()


# Relative to sys.prefix; setup.cfg cannot leave out what was not generated. An sdist never has files
# of build/, so they are generated elsewhere.
SHARED = {
    "share/man/man1": "generated/man/*.1",
    "share/man/man8": "generated/man/*.8",
    "share/bash-completion/completions": "generated/completion/s3fs-meta",
    "share/zsh/site-functions": "generated/completion/_s3fs-meta",
    "share/fish/vendor_completions.d": "generated/completion/*.fish",
    "lib/systemd/system": "contrib/systemd/system/s3fs-meta*",
    "lib/systemd/user": "contrib/systemd/user/*.service",
}
COMMANDS: dict[str, Any] = {"dist_info": Metadata, "build_ext": Build}

setup(
    cmdclass=COMMANDS,
    data_files=[
        (directory, sorted(map(str, Path().glob(pattern)))) for directory, pattern in SHARED.items()
    ],
    ext_modules=[
        Extension(
            "s3fs_meta.fuse.fuse_intercept",
            [str(EXTENSION)],
            define_macros=[("SOURCE_SUM", f'"{SUM}"')],
            extra_compile_args=[*words("--cflags"), "-Wall", "-Wextra", "-fvisibility=hidden"],
            extra_link_args=words("--libs"),
        )
    ],
)
