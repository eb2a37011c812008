"""Parsing of JSON values from the bucket: types, ranges and unknown fields."""

import re

import pytest

from s3fs_meta.codec.fields import INTEGER_MAX, Fields, dump
from s3fs_meta.errors import FormatError


def fields_of(text: str) -> Fields:
    """Return the fields of a JSON object that is given as text."""
    return Fields.parse("object", text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        "null",
        '{"a": 1} x',
        "\xff",
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 1}}',
        "[" * 100_000,
        '{"a": ' + "9" * 10_000 + "}",
    ],
    ids=lambda text: text[:12],
)
def test_text_that_is_not_a_json_object_is_refused(text: str) -> None:
    """For such text, the JSON parser raises no error but FormatError."""
    with pytest.raises(FormatError):
        fields_of(text)


@pytest.mark.parametrize("item", ["[]", "{}", "0", "[[]]", '{"a": {}}'])
def test_json_with_too_many_values_is_refused(item: str) -> None:
    """Parsed JSON can need a hundred times the memory of its text, so values are counted first."""
    text = '{"a": [' + ",".join([item] * 40) + "]}"
    marks = text.count("[") + text.count("{") + text.count(",")

    assert len(Fields.parse("object", text.encode(), values_max=marks).array("a", 40)) == 40
    with pytest.raises(FormatError, match="too many values"):
        Fields.parse("object", text.encode(), values_max=marks - 1)
    with pytest.raises(FormatError, match="too many values"):
        fields_of(text.replace("]}", "," * 1000 + "]}"))


@pytest.mark.parametrize(
    "value", ["true", "1.0", "1e3", '"1"', "null", "NaN", "-1", "11", "[1]", str(INTEGER_MAX + 1)]
)
def test_json_integers_are_checked_for_type_and_range(value: str) -> None:
    """JSON values such as true and 1.0 are rejected if an integer is expected."""
    with pytest.raises(FormatError, match="'a'"):
        fields_of(f'{{"a": {value}}}').integer("a", 0, 10)


@pytest.mark.parametrize("value", ["1", "0", '"true"', "null"])
def test_json_field_of_type_boolean_accepts_only_true_and_false(value: str) -> None:
    with pytest.raises(FormatError):
        fields_of(f'{{"a": {value}}}').boolean("a")


@pytest.mark.parametrize("value", ["1", '"too long"', r'"\ud800"', r'"\n"', r'"\u0000"', "null"])
def test_json_text_that_is_too_long_or_unprintable_is_refused(value: str) -> None:
    """Text with control characters or lone surrogates is rejected."""
    with pytest.raises(FormatError):
        fields_of(f'{{"a": {value}}}').text("a", 3)


@pytest.mark.parametrize("value", ["0A0b", "0a0", "0a0b0c", "", "0g0b", "٠a0b"])
def test_hexadecimal_json_text_must_have_the_exact_length_and_lower_case_digits(value: str) -> None:
    with pytest.raises(FormatError):
        Fields("object", {"a": value}).hexadecimal("a", 2)


def test_valid_json_fields_are_returned_unchanged() -> None:
    fields = Fields.parse(
        "object",
        dump({"n": 3, "b": True, "t": "Grüße", "h": "0aff", "x": None, "i": {"n": 1}, "l": [1]}),
    )

    assert fields.integer("n", 3, 3) == 3
    assert fields.boolean("b") is True
    assert fields.text("t", 5) == "Grüße"
    assert fields.optional("h", lambda name: fields.hexadecimal(name, 2)) == "0aff"
    assert fields.optional("x", fields.boolean) is None
    assert fields.inner("i").integer("n") == 1
    assert fields.array("l", 1) == [1]
    fields.finish()


def test_error_names_the_missing_or_unknown_field_of_a_json_object() -> None:
    fields = fields_of('{"b": 1}')

    with pytest.raises(FormatError, match="'a' is missing"):
        fields.optional("a", fields.boolean)
    with pytest.raises(FormatError, match="unknown field 'b'"):
        fields.finish()


def test_json_value_with_the_wrong_structure_is_refused() -> None:
    """A JSON object, array or text is rejected if a different type or pattern is expected."""
    values = {"a": [1, 2], "b": {}, "c": "abc"}
    with pytest.raises(FormatError):
        Fields("object", values).array("a", 1)
    with pytest.raises(FormatError):
        Fields("object", values).array("b", 1)
    with pytest.raises(FormatError):
        Fields("object", values).inner("a")
    with pytest.raises(FormatError):
        Fields("object", values).matching("c", re.compile("ab"))
