"""The one part that is compiled; everything else stands in setup.cfg."""

import shutil
import subprocess

from setuptools import Extension, setup


def words(option: str) -> list[str]:
    """Return what pkg-config says of libfuse; nothing without it, so that the part is left out."""
    if shutil.which("pkg-config") is None:
        return []
    done = subprocess.run(
        ["pkg-config", option, "fuse3"], capture_output=True, text=True, check=False
    )
    return done.stdout.split()


setup(
    ext_modules=[
        Extension(
            "s3fs_meta.fuse.seam",
            ["s3fs_meta/fuse/seam.c"],
            extra_compile_args=[*words("--cflags"), "-Wall", "-Wextra", "-fvisibility=hidden"],
            extra_link_args=words("--libs"),
            optional=True,  # without it everything works as pyfuse3 alone lets it
        )
    ]
)
