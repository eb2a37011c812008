"""Options that several commands share."""

from s3fs_meta.cli import options
from s3fs_meta.objects.urls import S3Options


def test_bucket_options_are_parsed() -> None:
    """Bucket options that are not given are None, so that the AWS configuration applies."""
    assert options.BucketOptions(endpoint_url="http://x", profile="p").s3 == S3Options(
        "http://x", None, "p"
    )
