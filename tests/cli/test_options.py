"""Options that several commands share."""

from typing import Any

import pytest
import typer

from s3fs_meta.cli import entry, options
from s3fs_meta.objects.urls import S3Options


def test_bucket_options_that_are_omitted_have_no_value() -> None:
    """Omitted bucket options are None, so the settings of the AWS configuration apply."""
    assert options.BucketOptions(endpoint_url="http://x", profile="p").s3 == S3Options(
        "http://x", None, "p"
    )


@pytest.mark.parametrize("name", ["flush", "promote", "set", "umount", "pins"])
def test_mountpoint_is_parsed_without_a_system_call(name: str) -> None:
    """stat(2) of a mountpoint, which click's type for paths calls, hangs if the daemon hangs."""
    command: Any = typer.main.get_command(entry.make_app([name, "version"]))
    parameters = {one.name: one for one in command.commands[name].params}
    assert type(parameters["mountpoint"].type).__name__ == "FuncParamType"
