"""Tests of the price tables for requests, storage and transfer."""

from datetime import date
from pathlib import Path

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import GIB
from s3fs_meta.mount.limits import PRICE_TABLE_BYTES_MAX
from s3fs_meta.mount.statistics import prices

TABLE = """
name = "MinIO"
as_of = 2026-11-01
currency = "EUR"
gb = "1000000000"

[requests]
put = 1
list = 2.5
get = 0
delete = 0.0

[transfer]
out = 0.5

[storage]
month = 4
"""


def test_default_prices_are_the_prices_of_aws_s3_standard() -> None:
    found = prices.default()
    assert (found.name, found.currency) == ("AWS S3 Standard, us-east-1", "USD")
    assert {kind: price * 1000 for kind, price in found.requests.items()} == pytest.approx(
        {"put": 0.005, "list": 0.005, "get": 0.0004, "delete": 0}
    )
    assert found.out_byte * GIB == pytest.approx(0.09)
    assert found.stored_byte * GIB == pytest.approx(0.023)


def test_prices_are_converted_to_prices_per_request_and_per_byte(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(TABLE)
    assert prices.load(tmp_path / "prices.toml") == prices.PriceTable(
        "MinIO",
        date(2026, 11, 1),
        "EUR",
        {"put": 0.001, "list": 0.0025, "get": 0, "delete": 0},
        0.5e-9,
        4e-9,
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("put = 1", "put = -1", "[requests] put must be a price from 0 to 1e+06, not -1"),
        ("put = 1", "put = nan", "[requests] put must be a price"),
        ("put = 1", "put = inf", "[requests] put must be a price"),
        ("put = 1", "put = true", "[requests] put must be a price"),
        ("put = 1", 'put = "1"', "[requests] put must be a price"),
        ("put = 1", "putt = 1", "[requests]: unknown field 'putt'; did you mean 'put'?"),
        ("put = 1", "", "[requests]: the field 'put' is missing"),
        ("[storage]", "[stored]", "unknown field 'stored'"),
        ("[storage]\nmonth = 4", "", "the field 'storage' is missing"),
        ('gb = "1000000000"', 'gb = "much"', "gb=much is not a size"),
        ('gb = "1000000000"', 'gb = "0"', "gb must be more than 0"),
        ('gb = "1000000000"', "gb = 5", "gb must be one line of text"),
        ("2026-11-01", '"2026-11-01"', "as_of must be a date"),
        ("2026-11-01", "2026-11-01T00:00:00", "as_of must be a date"),
        ('"MinIO"', '"two\\nlines"', "name must be one line of text"),
        ("[transfer]\nout = 0.5", "", "the field 'transfer' is missing"),
        ('name = "MinIO"', 'name = "MinIO"\ntransfer = 1', "is not valid TOML: "),
        ("[requests]", "[requests", "is not valid TOML: "),
        ("put = 1", "put = " + "1" * 5000, "is not valid TOML: "),
        ("put = 1", "put = 0x" + "f" * 5000, "[requests] put must be a price"),
        ("put = 1", "put = [0x" + "f" * 5000 + "]", "[requests] put must be a price"),
        ('"MinIO"', "[" * 50_000, "is not valid TOML: "),
    ],
)
def test_error_about_a_price_table_names_the_invalid_field(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    path = tmp_path / "prices.toml"
    assert old in TABLE
    path.write_text(TABLE.replace(old, new))
    with pytest.raises(UsageError) as refused:
        prices.load(path)
    assert why in refused.value.message
    assert str(path) in refused.value.message


@pytest.mark.parametrize("data", [b"\xff", b" " * (PRICE_TABLE_BYTES_MAX + 1), b""])
def test_invalid_price_table_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UsageError):
        prices.load(tmp_path / "x")


def test_error_about_a_missing_price_table_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing: No such file"):
        prices.load(tmp_path / "missing")
