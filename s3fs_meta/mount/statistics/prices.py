"""The prices of a store: a table in TOML, by default with the prices of AWS S3 Standard.

Owns: the fields of the table, and their ranges. Does not know: the counts of requests.
Design: docs/guide/cost.md, "A table of prices".
"""

import sys
from collections.abc import Mapping
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from s3fs_meta.console import given_file
from s3fs_meta.errors import UsageError
from s3fs_meta.mount.limits import PRICE_MAX, PRICE_TABLE_BYTES_MAX
from s3fs_meta.objects.billing import RequestClass
from s3fs_meta.options.option_syntax import nearest, parse_size

DEFAULT: Final = "aws-s3-standard.toml"
_REQUESTS: Final = 1000  # the price table lists prices per 1000 requests
_TEXTS: Final = ("name", "currency", "gb")
_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "requests": tuple(kind.value for kind in RequestClass),
    "transfer": ("out",),
    "storage": ("month",),
}


class PriceTable(NamedTuple):
    """The prices of one store in one currency."""

    name: str
    as_of: date
    currency: str
    requests: Mapping[str, float]  # price of one request by request class
    out_byte: float  # price of one byte that leaves the store
    stored_byte: float  # price of one byte stored for a month


def default() -> PriceTable:
    """Return the prices of AWS S3 Standard."""
    text = resources.files("s3fs_meta.mount.statistics").joinpath(DEFAULT).read_bytes()
    return parse(DEFAULT, text)


def load(path: Path) -> PriceTable:
    """Return the prices in a TOML file. The call blocks.

    Raises:
        UsageError: the file cannot be read, or is not a valid table of prices.
    """
    try:
        data = given_file.read(path, PRICE_TABLE_BYTES_MAX + 1)
    except OSError as exc:
        raise UsageError(f"cannot read --prices {path}: {exc.strerror}") from exc
    return parse(f"--prices {path}", data)


def parse(where: str, data: bytes) -> PriceTable:
    """Return the prices in the TOML text of a table.

    Raises:
        UsageError: a field is missing, unknown, or out of range.
    """
    if len(data) > PRICE_TABLE_BYTES_MAX:
        raise UsageError(f"{where}: the price table is larger than {PRICE_TABLE_BYTES_MAX} bytes")
    try:
        fields = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as exc:  # also for a number with too many digits
        raise UsageError(f"{where}: the price table is not valid TOML: {exc}") from exc
    _require_names(where, fields, (*_TEXTS, "as_of", *_TABLES))
    for name in _TEXTS:
        if not isinstance(fields[name], str) or not fields[name].isprintable():
            raise UsageError(f"{where}: the field {name} must be one line of text in quotes")
    if type(fields["as_of"]) is not date:
        raise UsageError(
            f"{where}: the field as_of must be a date such as 2026-03-01, without quotes"
        )
    try:
        gb_bytes = parse_size("gb", fields["gb"], "1G")
    except UsageError as exc:
        raise UsageError(f"{where}: {exc.message}") from exc
    if not gb_bytes:
        raise UsageError(f"{where}: the field gb must be more than 0")
    prices = {name: _prices(where, name, fields[name]) for name in _TABLES}
    return PriceTable(
        fields["name"],
        fields["as_of"],
        fields["currency"],
        {kind: price / _REQUESTS for kind, price in prices["requests"].items()},
        prices["transfer"]["out"] / gb_bytes,
        prices["storage"]["month"] / gb_bytes,
    )


def _prices(where: str, table: str, fields: Any) -> dict[str, float]:
    if not isinstance(fields, dict):
        raise UsageError(f"{where}: {table} must be a TOML table: [{table}]")
    _require_names(f"{where}: [{table}]", fields, _TABLES[table])
    for name, price in fields.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not 0 <= price <= PRICE_MAX:  # a comparison with NaN is always false
            # Python refuses to format an integer of many digits, also in an array or a table.
            is_long = isinstance(price, list | dict) or (
                isinstance(price, int) and abs(price) > PRICE_MAX
            )
            shown = "" if is_long else f", not {price!r}"
            raise UsageError(
                f"{where}: [{table}] {name} must be a price from 0 to {PRICE_MAX:g}{shown}"
            )
    return fields


def _require_names(where: str, fields: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in fields:
        if name not in names:
            raise UsageError(f"{where}: unknown field {name!r}{nearest(name, names)}")
    for name in names:
        if name not in fields:
            raise UsageError(f"{where}: the field {name!r} is missing")
