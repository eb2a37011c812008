"""The compiled part, and generated pages where `make man` wrote them; the rest is in setup.cfg."""

import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup


def words(option: str) -> list[str]:
    """Return what pkg-config says of libfuse; nothing without it, so that the part is left out."""
    if shutil.which("pkg-config") is None:
        return []
    done = subprocess.run(
        ["pkg-config", option, "fuse3"], capture_output=True, text=True, check=False
    )
    return done.stdout.split()


# Relative to sys.prefix; setup.cfg cannot leave out what was not generated.
SHARED = {
    "share/man/man1": "build/man/*.1",
    "share/man/man8": "build/man/*.8",
    "share/bash-completion/completions": "build/completion/s3fs-meta",
    "share/zsh/site-functions": "build/completion/_s3fs-meta",
    "share/fish/vendor_completions.d": "build/completion/*.fish",
}

setup(
    data_files=[
        (directory, sorted(map(str, Path().glob(pattern)))) for directory, pattern in SHARED.items()
    ],
    ext_modules=[
        Extension(
            "s3fs_meta.fuse.seam",
            ["s3fs_meta/fuse/seam.c"],
            extra_compile_args=[*words("--cflags"), "-Wall", "-Wextra", "-fvisibility=hidden"],
            extra_link_args=words("--libs"),
            optional=True,  # without it everything works as pyfuse3 alone lets it
        )
    ],
)
