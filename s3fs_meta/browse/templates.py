"""Pages from templates.

Owns: jinja2, the functions that templates call. Does not know: which page a request gets.
Keeps: every value is escaped; a missing value is an error, not an empty text.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from s3fs_meta.browse import names
from s3fs_meta.console.output import human_bytes, human_time
from s3fs_meta.errors import SettingsError

_FOLDER: Final = Path(__file__).parent
STYLE: Final = _FOLDER / "style.css"

Render = Callable[..., bytes]


def load() -> Render:
    """Return a function that makes a page from the name of a template and its values.

    Raises:
        SettingsError: jinja2 is not installed.
    """
    try:
        import jinja2  # an optional dependency
    except ModuleNotFoundError as exc:
        raise SettingsError(
            "the pages need the package jinja2: pip install 's3fs-meta[browse]', or pip install jinja2"
        ) from exc
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        {
            "to_url": names.to_url,
            "shown": names.shown,
            "bytes": human_bytes,
            "time": human_time,
        }
    )

    def render(template: str, **values: Any) -> bytes:
        return environment.get_template(template).render(**values).encode()

    return render
