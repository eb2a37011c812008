"""Reading small versioned JSON files in the state directory, and checking their numbers.

Owns: code that ``known_points`` and ``request_log`` share, for reading and checking.
Does not know: the fields and the purpose of these files.
"""

import json
from pathlib import Path
from typing import Any, Final

from s3fs_meta.state_paths import read_regular

_NUMBER_MAX: Final = 1 << 63

# exceptions that decoding a damaged file may raise
DAMAGED: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class NewerFileError(Exception):
    """A newer version of the program wrote the file, so this version does not change it."""


def read_fields(path: Path, version: int, bytes_max: int) -> dict[str, Any] | None:
    """Return the fields of a file, or None if there is no file. The call blocks.

    Raises:
        NewerFileError: the file's version is higher than *version*.
        OSError: the file cannot be read.
        One of the errors in DAMAGED: the file is damaged.
    """
    try:
        data = read_regular(path, bytes_max + 1)
    except FileNotFoundError:
        return None
    if len(data) > bytes_max:
        raise ValueError(f"the file is larger than {bytes_max} bytes")
    fields: dict[str, Any] = json.loads(data)
    if number(fields["version"]) > version:
        raise NewerFileError(f"version {fields['version']}")
    return fields


def number(value: Any) -> int:
    """Return *value* if it is a valid number and not negative; otherwise raise ValueError."""
    if not isinstance(value, int) or not 0 <= value < _NUMBER_MAX:
        raise ValueError(f"a value is not a number: {value!r}")
    return value
