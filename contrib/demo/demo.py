"""The program of ``make demo``: copy files to a filesystem and compare every byte.

The program makes and mounts a filesystem in a temporary directory. It copies the Python standard
library into the mount, lists the files, unmounts and runs fsck. It mounts again, and compares every
name, byte, mode and time with the source. It removes its mounts and files even after a failure. Run
it with a Python interpreter that has s3fs-meta installed.
"""

import contextlib
import filecmp
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("s3fs-meta")
SOURCE = Path(sysconfig.get_path("stdlib"))
# The copy omits installed packages and compiled files, which may change before the comparison.
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__")


def run(*words: str | Path) -> str:
    """Run a command of s3fs-meta, print its command line, and return its output."""
    print(f"  $ s3fs-meta {' '.join(map(str, words))}", flush=True)
    done = subprocess.run([PROGRAM, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"s3fs-meta {words[0]} failed with status {done.returncode}")
    return done.stdout


@contextlib.contextmanager
def step(title: str, times: dict[str, float]) -> Iterator[None]:
    """Print the title of a step, and record the duration of the context in *times*."""
    print(f"\n{title}", flush=True)
    began = time.monotonic()
    yield
    times[title] = time.monotonic() - began


def tree(root: Path) -> Iterator[Path]:
    """Yield every path below *root*, relative to *root*, except the names in LEFT_OUT."""
    for folder, directories, files in os.walk(root):
        directories[:] = sorted(name for name in directories if name not in LEFT_OUT)
        for name in [*directories, *sorted(files)]:
            yield Path(folder, name).relative_to(root)


def differences(source: Path, copy: Path) -> list[str]:
    """Return the differences between two trees, with one line per difference."""
    names, copied = set(tree(source)), set(tree(copy))
    found = [f"missing: {name}" for name in sorted(names - copied)]
    found += [f"not in the source: {name}" for name in sorted(copied - names)]
    for name in sorted(names & copied):
        found += [f"{what} differs: {name}" for what in compare(source / name, copy / name)]
    return found


def compare(one: Path, other: Path) -> list[str]:
    """Return the names of the properties in which two paths differ."""
    ours, theirs = one.lstat(), other.lstat()
    found = []
    if ours.st_mode != theirs.st_mode:
        found.append("mode")
    if stat.S_ISLNK(ours.st_mode):
        return [*found, "target"] if os.readlink(one) != os.readlink(other) else found
    if ours.st_mtime_ns != theirs.st_mtime_ns:
        found.append("time")
    if stat.S_ISREG(ours.st_mode) and not filecmp.cmp(one, other, shallow=False):
        found.append("content")
    return found


def show(scratch: Path, times: dict[str, float]) -> None:
    """Run all steps of the demonstration, from mkfs to the last unmount."""
    url, mountpoint = f"local://{scratch}/bucket", scratch / "mnt"
    here = ("--cachedir", scratch / "state")
    copy = mountpoint / "python"
    mountpoint.mkdir()
    with step("make an encrypted filesystem on a local directory", times):
        run("mkfs", *here, url)
    with step("mount it", times):
        run("mount", *here, url, mountpoint)
    with step(f"copy {SOURCE} to the filesystem", times):
        shutil.copytree(SOURCE, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    with step("list it", times):
        sizes = [(copy / name).lstat().st_size for name in tree(copy)]
        print(f"  {len(sizes)} names, {sum(sizes) / 1e6:.1f} MB")
    with step("unmount the filesystem: all changes are uploaded to the bucket", times):
        run("umount", mountpoint)
    with step("check it", times):
        print(run("fsck", "-n", *here, url), end="")
    with step("mount the filesystem again, without local state, as another machine would", times):
        shutil.rmtree(scratch / "state")
        run("mount", *here, url, mountpoint)
    with step("compare every name, byte, mode and time with the source", times):
        found = differences(SOURCE, copy)
        print("\n".join(f"  {line}" for line in found[:20]) or "  no difference")
    with step("unmount it", times):
        run("umount", mountpoint)
    stored = sum(path.stat().st_size for path in (scratch / "bucket").rglob("*") if path.is_file())
    print(f"\nthe bucket contains {stored / 1e6:.1f} MB for {sum(sizes) / 1e6:.1f} MB of files")
    if found:
        raise SystemExit(f"{len(found)} differences")


def is_mounted(path: Path) -> bool:
    """Return whether the mount table has a mount on *path*, even if its daemon has exited."""
    return any(line.split()[4] == str(path) for line in open("/proc/self/mountinfo"))


def main() -> None:
    """Run the demonstration, print the time of each step, and clean up."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise SystemExit("/dev/fuse cannot be opened: nothing can be mounted on this machine")
    os.environ.setdefault("S3FS_META_PASSPHRASE", "demo")
    times: dict[str, float] = {}
    scratch = Path(tempfile.mkdtemp(prefix="s3fs-meta-demo-")).resolve()
    try:
        show(scratch, times)
    finally:
        if is_mounted(scratch / "mnt"):
            subprocess.run(["fusermount3", "-u", "-z", scratch / "mnt"], check=False)
        shutil.rmtree(scratch, ignore_errors=True)
        print()
        for title, seconds in times.items():
            print(f"{seconds:7.1f} s  {title}")
    print(f"{sum(times.values()):7.1f} s  in total; all mounts and files are removed")


if __name__ == "__main__":
    main()
