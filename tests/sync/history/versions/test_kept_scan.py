"""Results of the scan of each txg, which several searches share."""

import pytest

from s3fs_meta.sync.history.versions.changelog_reader import ChangelogReader, Scanned
from s3fs_meta.sync.history.versions.kept_scan import KeptScan
from tests.sync.conftest import Power
from tests.sync.history.files import Files
from tests.sync.history.readers import bucket_of

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("kept_max", "decodings"),
    [(4, 2), (3, 3), (0, 4)],
    ids=["both fit", "one fits", "none fits"],
)
async def test_scan_keeps_results_up_to_its_limit(
    power: Power, files: Files, kept_max: int, decodings: int
) -> None:
    """Each kept txg counts as one result in addition to its changes."""
    txgs = [(await files.make(b"%d" % number, 10))[1] for number in range(2)]
    decoded: list[bytes] = []

    def length(changeset: bytes, _is_whole: bool) -> list[int]:
        decoded.append(changeset)
        return [len(changeset)]

    bucket = await bucket_of(power)
    reader = ChangelogReader(bucket.store, bucket.keyring, bucket.uuid)
    scan = KeptScan(reader, length, kept_max)
    first, second = await scan.scan(txgs), await scan.scan(txgs)

    assert first == second
    assert sorted(one.results for one in first if isinstance(one, Scanned)) == sorted(
        [[len(changeset)]] for changeset in decoded[:2]
    )
    assert len(decoded) == decodings
