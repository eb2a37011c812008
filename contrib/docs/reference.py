"""The generator of docs/reference, man pages and completion scripts.

    python -m contrib.docs.reference [--check] docs/reference
    python -m contrib.docs.reference --man generated/man
    python -m contrib.docs.reference --completion generated/completion

Owns: the text of the pages, except the texts of the commands, mount options and exit statuses.
"""

import argparse
import difflib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from contrib.docs import command_tree, errnos_page, man_pages
from contrib.docs.command_tree import Command, Parameter
from s3fs_meta.cli import completion
from s3fs_meta.console.exits import FSCK_MEANINGS, MEANINGS, MOUNT_MEANINGS
from s3fs_meta.options.option_row import Option
from s3fs_meta.options.option_table import OPTIONS
from s3fs_meta.options.settings import IGNORED_WORDS, REFUSED_WORDS

ROOT: Final = Path(__file__).resolve().parents[2]
_GENERATED: Final = "<!-- Made by `make docs` from the program; do not edit by hand. -->"

# The script replaces Typer's script, which fails because bash splits words at "=" and ":".
_BASH: Final = r"""# Completion of s3fs-meta for bash.
_s3fs_meta() {
    local line=${COMP_LINE:0:COMP_POINT} words current kept=
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current=${words[-1]}
    mapfile -t COMPREPLY < <(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
        _S3FS_META_COMPLETE=complete_bash "$1" 2>/dev/null)
    [[ -n ${COMPREPLY[*]} ]] || { COMPREPLY=(); return 0; }
    # Bash replaces only the text after the last "=" or ":".
    [[ $current == *[=:]* ]] && kept=${current%"${current##*[=:]}"}
    COMPREPLY=("${COMPREPLY[@]#"$kept"}")
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}
complete -o bashdefault -o default -F _s3fs_meta s3fs-meta
"""

# zsh runs the file at the first completion in a session, and needs the result of this completion.
# The end of Typer's script for zsh registers a function, but only later completions call it.
_ZSH_END: Final = "compdef _s3fs_meta_completion s3fs-meta\n"
_ZSH_COMPLETING_END: Final = f"""if [[ $funcstack[1] == _s3fs-meta ]]; then
  _s3fs_meta_completion "$@"
else
  {_ZSH_END}fi
"""

# The name of the completion script that each shell searches for.
_COMPLETION_FILES: Final[Mapping[str, str]] = {
    "bash": "s3fs-meta",
    "zsh": "_s3fs-meta",
    "fish": "s3fs-meta.fish",
}


def commands_page() -> str:
    """Return the text of cli.md."""
    lines = [
        "# Commands",
        "",
        _GENERATED,
        "",
        "Every command prints its section of this page with `--help`.",
        "An error is one line on standard error; scripts use the [exit statuses](exit-codes.md).",
        "[JSON output](json.md) lists the fields that each command prints with `--json`.",
        "",
    ]
    for command in command_tree.read():
        lines += _command_section(command)
    return "\n".join(lines).rstrip() + "\n"


def settings_page() -> str:
    """Return the text of settings.md."""
    refused = ", ".join(f"`{word}`" for word in sorted(REFUSED_WORDS))
    ignored = ", ".join(f"`{word}`" for word in sorted(IGNORED_WORDS))
    lines = [
        "# Mount options",
        "",
        _GENERATED,
        "",
        "The options of `s3fs-meta mount -o`, `mount -t s3fs-meta -o` and `/etc/fstab`, "
        "separated by commas.",
        "A later option overrides an earlier one that contradicts it; a comma in a value is written"
        " `\\,`.",
        "Sizes have the units `K`, `M`, `G` or `T` (powers of 1024), times `ms`, `s`, `m`, `h`, "
        "`d` or `w`.",
        f"Options of other programs that read fstab are ignored: {ignored}, `comment=…`, `x-…` and"
        " `X-…`.",
        f"Options that s3fs-meta does not support are refused with the reason: {refused}.",
        "Every other option is refused as unknown, before any change is made.",
        "",
    ]
    for option in OPTIONS:
        lines += _option_section(option)
    return "\n".join(lines).rstrip() + "\n"


def exits_page() -> str:
    """Return the text of exit-codes.md."""
    lines = ["# Exit statuses", "", _GENERATED, ""]
    lines += _table("s3fs-meta", {int(key): text for key, text in MEANINGS.items()})
    lines += _table("s3fs-meta fsck", FSCK_MEANINGS, "The statuses of fsck(8).")
    lines += _table("mount.s3fs-meta", MOUNT_MEANINGS, "The statuses of mount(8).")
    return "\n".join(lines).rstrip() + "\n"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "cli.md": commands_page,
    "settings.md": settings_page,
    "exit-codes.md": exits_page,
    "errnos.md": errnos_page.page,
}


def _command_section(command: Command) -> list[str]:
    words = command.words
    lines = [f"## s3fs-meta {words.name}", "", words.summary, "", "```", command.usage, "```", ""]
    for paragraph in words.description:
        lines += [paragraph, ""]
    if command.arguments or command.options:
        lines += ["| | |", "| --- | --- |"]
        lines += [_parameter_row(one) for one in (*command.arguments, *command.options)]
        lines.append("")
    lines += ["Examples:", "", "```"]
    lines += [f"{one.command}  # {one.does}" for one in words.examples]
    lines += ["```", "", "Exit status:", "", "| | |", "| --- | --- |"]
    lines += [f"| {status} | {meaning} |" for status, meaning in words.exits.items()]
    return [*lines, ""]


def _parameter_row(one: Parameter) -> str:
    names = ", ".join(f"`{name} {one.takes}`" if one.takes else f"`{name}`" for name in one.names)
    default = f" Default: `{one.default}`." if one.default else ""
    return f"| {names} | {one.text}{default} |"


def _option_section(option: Option) -> list[str]:
    shown = f"{option.word}={option.takes}" if option.takes else option.word
    default = ""
    if option.default:
        default = f" Default: `{option.default}`." if option.takes else " This is the default."
    return [
        f"## `{shown}`",
        "",
        option.does + default,
        "",
        f"- Costs: {option.costs}",
        f"- In a crash: {option.crash}",
        "",
    ]


def _table(program: str, meanings: Mapping[int, str], text: str = "") -> list[str]:
    lines = [f"## {program}", ""]
    if text:
        lines += [text, ""]
    lines += ["| status | means |", "| --- | --- |"]
    return [*lines, *(f"| {key} | {value} |" for key, value in meanings.items()), ""]


def completion_scripts() -> dict[str, str]:
    """Return the completion scripts, by file name.

    Typer prints the scripts for zsh and fish if a certain environment variable is set. Source:
    Typer, "CLI Option autocompletion".
    """
    found = {
        file: _BASH if shell == "bash" else _script(shell)
        for shell, file in _COMPLETION_FILES.items()
    }
    zsh = found[_COMPLETION_FILES["zsh"]]
    assert zsh.endswith(_ZSH_END), "Typer has changed its script for zsh"
    found[_COMPLETION_FILES["zsh"]] = zsh.removesuffix(_ZSH_END) + _ZSH_COMPLETING_END
    return found


def _script(shell: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "s3fs_meta"],
        env={**os.environ, completion.VARIABLE: f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip() + "\n"


def stale(directory: Path) -> list[str]:
    """Return the lines in which the pages in *directory* differ from the generated pages."""
    found: list[str] = []
    for name, make in PAGES.items():
        path = directory / name
        present = path.read_text() if path.exists() else ""
        found += difflib.unified_diff(
            present.splitlines(), make().splitlines(), str(path), "generated", lineterm="", n=0
        )
    return found


def main() -> int:
    """Write the requested files; with --check, return 1 if a page is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--man", action="store_true")
    parser.add_argument("--completion", action="store_true")
    parser.add_argument("directory", type=Path)
    wanted = parser.parse_args()
    if wanted.check:
        found = stale(wanted.directory)
        sys.stderr.write("".join(f"{line}\n" for line in found))
        return 1 if found else 0
    if wanted.man:
        texts = man_pages.pages()
    elif wanted.completion:
        texts = completion_scripts()
    else:
        texts = {name: make() for name, make in PAGES.items()}
    wanted.directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (wanted.directory / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
