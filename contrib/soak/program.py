"""The program ``s3fs-meta`` with small limits, so that one hour tests as much as weeks of use.

Packs, levels (merged changelogs) and images are smaller and are made earlier. Reclaim runs every
few seconds.
"""

from s3fs_meta import limits

KIB = limits.KIB

SMALL = {
    "PACK_BYTES_TARGET": 256 * KIB,
    "SEAL_BATCH_BYTES": 1024 * KIB,
    "SEAL_AGE_S": 0.5,
    "SEAL_LINGER_S": 2.0,
    "IMAGE_CHECK_S": 2.0,
    "IMAGE_SHARE_BYTES_MIN": 64 * KIB,
    "LEVEL_CHECK_S": 2.0,
    "RECLAIM_INTERVAL_S": 15.0,
    "CONDENSE_INTERVAL_S": 3.0,
    "LEASE_CHECK_S": 2.0,
    "UPLOAD_PAUSE_S": 1.0,
    "UPLOAD_RETRY_S_MAX": 5.0,
    "FOLLOW_RESYNC_S": 5.0,
}

for name, value in SMALL.items():
    assert hasattr(limits, name), name
    setattr(limits, name, value)

# Change the limits before this import, because modules copy limits when they are imported.
from s3fs_meta.cli.start import program  # noqa: E402

if __name__ == "__main__":
    program()
