"""Options that several commands share."""

from s3fs_meta.cli import options
from s3fs_meta.objects.urls import S3Options


def test_omitted_bucket_options_have_no_value() -> None:
    """Omitted bucket options are None, so that the settings of the AWS configuration apply."""
    assert options.BucketOptions(endpoint_url="http://x", profile="p").s3 == S3Options(
        "http://x", None, "p"
    )
