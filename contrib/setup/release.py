"""The program of ``make release VERSION=0.2.0``, which makes a release.

The steps in order: write the version to setup.cfg; move the fragments of changes/ into
CHANGELOG.md; generate man pages and completion; build a wheel and an sdist; try each in a new
environment; commit; tag. So a failure before the commit leaves no commit and no tag. The maintainer
publishes the release (``git push --follow-tags``, ``twine upload dist/*``).
"""

import datetime as dt
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DIST: Final = ROOT / "dist"
CHANGES: Final = ROOT / "changes"
VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
SHARED: Final = (
    "share/man/man1/s3fs-meta.1",
    "share/man/man8/mount.s3fs-meta.8",
    "share/bash-completion/completions/s3fs-meta",
    "share/zsh/site-functions/_s3fs-meta",
    "share/fish/vendor_completions.d/s3fs-meta.fish",
    "lib/systemd/system/s3fs-meta-backup@.service",
    "lib/systemd/system/s3fs-meta-backup@.timer",
    "lib/systemd/system/s3fs-meta@.service",
    "lib/systemd/user/s3fs-meta@.service",
)


def run(*words: str | Path) -> str:
    """Run a program in the project; return its output."""
    print("$", *words, flush=True)
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words[0]} failed: {done.returncode}\n{done.stdout}")
    return done.stdout.strip()


def check(version: str) -> None:
    """Refuse an invalid version, a version that is not newer, and uncommitted changes."""
    if not VERSION.fullmatch(version):
        raise SystemExit("usage: make release VERSION=MAJOR.MINOR.PATCH")
    if run("git", "status", "--porcelain"):
        raise SystemExit("uncommitted changes: commit or stash them first")
    tags = [each[1:] for each in run("git", "tag", "--list", "v*").split()]
    if any(numbers(version) <= numbers(tag) for tag in tags if VERSION.fullmatch(tag)):
        raise SystemExit(f"version {version} is not later than every tag: {', '.join(tags)}")


def numbers(version: str) -> tuple[int, ...]:
    """Return the parts of a version as numbers, for comparison."""
    return tuple(map(int, version.split(".")))


def present_version() -> str:
    """Return the version in setup.cfg."""
    found = re.search(r"(?m)^version = (.*)$", (ROOT / "setup.cfg").read_text())
    assert found is not None, "setup.cfg has a version"
    return found[1]


def set_version(version: str) -> None:
    """Write the version to setup.cfg."""
    path = ROOT / "setup.cfg"
    text, count = re.subn(r"(?m)^version = .*$", f"version = {version}", path.read_text())
    assert count == 1, "setup.cfg has one version"
    path.write_text(text)


def with_release(changelog: str, version: str, date: str, fragments: list[str]) -> str:
    """Return the changelog with a section for *version*: unreleased entries and fragments."""
    head, found, rest = changelog.partition("## Unreleased\n")
    assert found, "CHANGELOG.md has a section Unreleased"
    unreleased, next_section, older = rest.partition("\n## ")
    items = "".join(f"- {' '.join(fragment.split())}\n" for fragment in fragments)
    fixed = f"\n### Changed and fixed\n\n{items}" if items else ""
    section = f"## {version} - {date}\n{unreleased.rstrip()}\n{fixed}"
    return f"{head}## Unreleased\n\n{section}{next_section}{older}"


def write_changelog(version: str) -> None:
    """Move the fragments of changes/ into CHANGELOG.md."""
    paths = sorted(path for path in CHANGES.glob("*.md") if path.name != "README.md")
    path = ROOT / "CHANGELOG.md"
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    fragments = [each.read_text() for each in paths]
    path.write_text(with_release(path.read_text(), version, today, fragments))
    for each in paths:
        each.unlink()


def build() -> tuple[Path, Path]:
    """Build wheel, sdist and the page of the benchmarks; return wheel and sdist."""
    for path in (DIST, ROOT / "generated"):
        shutil.rmtree(path, ignore_errors=True)
    run("make", "man")
    # Build the sdist, and then build the wheel from the sdist.
    run(sys.executable, "-m", "build", "--outdir", DIST)
    run("make", "bench-page", f"ARGS=--to {DIST / 'benchmarks.html'}")
    [wheel], [sdist] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def check_installed(environment: Path, version: str, shared: Sequence[str] = SHARED) -> None:
    """Refuse an installation that lacks the program, its extension or a data file."""
    found = run(environment / "bin" / "s3fs-meta", "--version")
    assert version in found.split(), f"{found} instead of {version}"
    missing = [name for name in shared if not (environment / name).is_file()]
    assert not missing, f"not installed: {missing}"
    # The import fails if the extension is missing, or was built from a different source.
    run(environment / "bin/python", "-I", "-c", "import s3fs_meta.fuse.extension")


def try_out(distribution: Path, version: str) -> None:
    """Install a distribution in a new environment, check its files, and run the program."""
    with tempfile.TemporaryDirectory() as folder:
        venv, bucket, state = (Path(folder, name) for name in ("venv", "bucket", "state"))
        bucket.mkdir()
        run(sys.executable, "-m", "venv", venv)
        pins = ROOT / "requirements" / "dev.txt"
        run(venv / "bin/pip", "install", "--quiet", "--constraint", pins, distribution)
        check_installed(venv, version)
        program = venv / "bin" / "s3fs-meta"
        run(program, "mkfs", "--plain", f"local://{bucket}", "--cachedir", state)
        run(program, "fsck", "-n", f"local://{bucket}", "--cachedir", state)


def main() -> None:
    """Make a release of the version on the command line."""
    version = sys.argv[1] if len(sys.argv) > 1 else ""
    check(version)
    set_version(version)
    write_changelog(version)
    wheel, sdist = build()
    try_out(wheel, version)
    try_out(sdist, version)
    run("git", "commit", "--quiet", "--all", "--message", f"release: {version}")
    run("git", "tag", "--annotate", f"v{version}", "--message", f"s3fs-meta {version}")
    print(
        f"tagged v{version}; publish: git push --follow-tags && twine upload dist/*.whl dist/*.gz"
    )


if __name__ == "__main__":
    main()
