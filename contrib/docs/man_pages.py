"""Man pages, generated from the commands and their help texts.

Owns: the roff markup. Source: man(7), groff_man_style(7).
"""

import re
from collections.abc import Mapping

from contrib.docs import command_tree
from contrib.docs.command_tree import Command, Parameter
from s3fs_meta.cli.entry import SUMMARY
from s3fs_meta.cli.version import program_version
from s3fs_meta.console.exits import MOUNT_MEANINGS
from s3fs_meta.options.option_table import OPTIONS


def pages() -> dict[str, str]:
    """Return the man pages of program, commands and mount(8) helper, by file name."""
    commands = command_tree.read()
    found = {"s3fs-meta.1": _program_page(commands), "mount.s3fs-meta.8": _helper_page()}
    for command in commands:
        found[f"s3fs-meta-{command.words.name}.1"] = _command_page(command)
    return found


def _program_page(commands: list[Command]) -> str:
    lines = _head("s3fs-meta", 1, SUMMARY)
    lines += [".SH SYNOPSIS", ".B s3fs\\-meta", ".I COMMAND", "[OPTIONS]", ".SH COMMANDS"]
    for command in commands:
        lines += [".TP", f".BR s3fs\\-meta\\-{roff_text(command.words.name)} (1)"]
        lines.append(roff_text(command.words.summary))
    lines += [".SH ENVIRONMENT", ".TP", ".B S3FS_META_PASSPHRASE"]
    lines += ["The passphrase, unless a file is given; without both, the program asks for it."]
    lines += [".TP", ".B AWS_*"]
    lines += ["Credentials and region, as for every program that uses AWS's library."]
    return _page(lines)


def _command_page(command: Command) -> str:
    words = command.words
    lines = _head(f"s3fs-meta-{words.name}", 1, words.summary)
    lines += [".SH SYNOPSIS", f".B {roff_text(command.usage)}", ".SH DESCRIPTION"]
    for paragraph in words.description or (words.summary,):
        lines += [".PP", roff_text(paragraph)]
    lines += _parameters("ARGUMENTS", command.arguments)
    lines += _parameters("OPTIONS", command.options)
    if words.name == "mount":
        lines += _mount_options()
    lines += _exits(words.exits)
    lines.append(".SH EXAMPLES")
    for example in words.examples:
        lines += [".TP", f".B {roff_text(example.command)}", roff_text(example.does)]
    lines += [".SH SEE ALSO", ".BR s3fs\\-meta (1)"]
    return _page(lines)


def _helper_page() -> str:
    lines = _head("mount.s3fs-meta", 8, "mount a filesystem of s3fs-meta from mount(8) or fstab(5)")
    lines += [".SH SYNOPSIS", ".B mount \\-t s3fs\\-meta"]
    lines += ["[\\fB\\-o\\fR \\fIOPTIONS\\fR] \\fIURL\\fR \\fIDIRECTORY\\fR"]
    lines += [".SH DESCRIPTION", "The helper that mount(8) calls, from the directory /sbin."]
    lines += ["For root,", ".B dev", "and", ".B suid", "are the default of this helper."]
    lines += _mount_options()
    lines += _exits(MOUNT_MEANINGS)
    lines += [".SH SEE ALSO", ".BR s3fs\\-meta\\-mount (1), fstab (5)"]
    return _page(lines)


def _head(name: str, section: int, summary: str) -> list[str]:
    return [
        f'.TH {roff_text(name).upper()} {section} "" "s3fs\\-meta {program_version()}"',
        ".SH NAME",
        f"{roff_text(name)} \\- {roff_text(summary.rstrip('.'))}",
    ]


def _parameters(title: str, found: tuple[Parameter, ...]) -> list[str]:
    lines = [f".SH {title}"] if found else []
    for one in found:
        names = ", ".join(f"\\fB{roff_text(name)}\\fR" for name in one.names)
        takes = f" \\fI{roff_text(one.takes)}\\fR" if one.takes else ""
        default = f" Default: {one.default}." if one.default else ""
        lines += [".TP", names + takes, roff_text(one.text + default)]
    return lines


def _mount_options() -> list[str]:
    lines = [".SH MOUNT OPTIONS"]
    for option in OPTIONS:
        takes = f"=\\fI{roff_text(option.takes)}\\fR" if option.takes else ""
        default = f" Default: {option.default}." if option.default and option.takes else ""
        text = f"{option.does}{default} Costs: {option.costs} In a crash: {option.crash}"
        lines += [".TP", f"\\fB{roff_text(option.word)}\\fR{takes}", roff_text(text)]
    return lines


def _exits(meanings: Mapping[int, str]) -> list[str]:
    lines = [".SH EXIT STATUS"]
    for status, meaning in meanings.items():
        lines += [".TP", f".B {status}", roff_text(meaning)]
    return lines


def roff_text(text: str) -> str:
    """Return text escaped for roff, with text in backquotes in bold."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    escaped = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", escaped)
    return re.sub(r"^\.", r"\\&.", escaped)


def _page(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
