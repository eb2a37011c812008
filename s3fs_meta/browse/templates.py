"""The generation of pages from templates.

Owns: jinja2, the functions that templates call. Does not know: the page for a request.
Keeps: every value is escaped; a missing value is an error, not an empty text.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from s3fs_meta.browse import names
from s3fs_meta.browse.assets import FOLDER, SCRIPT
from s3fs_meta.console.output import human_bytes, human_duration, human_time
from s3fs_meta.errors import SettingsError

_TEMPLATES: Final = Path(FOLDER) / "templates"

Render = Callable[..., bytes]


def load(**constants: Any) -> Render:
    """Return a function that creates a page from the name of a template and values.

    Args:
        constants: values for every page: root, place, target (as arguments), has_mount.

    Raises:
        SettingsError: jinja2 is not installed.
    """
    try:
        import jinja2  # imported late, because jinja2 is an optional dependency
    except ModuleNotFoundError as exc:
        raise SettingsError(
            "the pages need the Python package jinja2; to install it, run pip install"
            " 's3fs-meta[browse]', or pip install jinja2"
        ) from exc
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "to_url": names.to_url,
        "shown": names.shown,
        "shell_word": _shell_word,
        "without_controls": names.without_controls,
        "bytes": human_bytes,
        "duration": human_duration,
        "time": human_time,
    }
    environment.filters.update(filters)
    environment.globals.update(constants, script=SCRIPT)

    def render(template: str, **values: Any) -> bytes:
        text = environment.get_template(template).render(**values)
        return text.encode(errors="backslashreplace")

    return render


def _shell_word(text: str | bytes) -> str:
    return names.shell_word(os.fsencode(text))
