"""The lease: which host may write, in which epoch, and which image is the newest.

Owns: the fields of the lease object, and the JSON form of a head outside a lease.
Does not know: stores, when an epoch is raised, takeovers.
Keeps: decisions depend only on epoch, holder, nonce, machine, released and head. The fields host,
pid and time are only shown to users.
Design: docs/design/format.md, "Lease".

The lease is neither encrypted nor authenticated, so that it can be read without a passphrase. An
attacker who can write to the bucket can change the lease. Such a change can fence the writer or
select an older image of this filesystem. On an encrypted filesystem it cannot select a forged
image, because manifests are authenticated.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from s3fs_meta.codec import text_object
from s3fs_meta.codec.fields import Fields, dump
from s3fs_meta.codec.image import ManifestRef, parse_manifest_key
from s3fs_meta.codec.keyring import HASH_BYTES
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import HOST_CHARS_MAX, KEY_BYTES_MAX
from s3fs_meta.model import Epoch, ObjectKey, Txg

KEY: Final = ObjectKey("lease")
VERSION: Final = 2
_WITHOUT_NONCE: Final = 1  # the oldest accepted format version; its leases have no nonce
HOLDER_CHARS_MAX: Final = 64
NONCE_BYTES: Final = 16
MARK_BYTES: Final = 16  # length of the keyed hash of a machine identifier, in bytes


class Head(NamedTuple):
    """The head: a reference to the newest image."""

    txg: Txg
    manifest_key: ObjectKey
    manifest_hash: str  # content_hash of the manifest

    @property
    def manifest(self) -> ManifestRef:
        """Return the reference to the image's manifest."""
        return ManifestRef(self.manifest_key, self.manifest_hash)


class MachineMarks(NamedTuple):
    """Keyed hashes of a machine's identifiers, in hexadecimal; None if unknown."""

    machine_id: str | None = None
    product_uuid: str | None = None

    def is_other(self, other: "MachineMarks") -> bool:
        """Return whether the keyed hashes prove that two machines are different."""
        return any(
            one is not None and another is not None and one != another
            for one, another in zip(self, other, strict=True)
        )


UNKNOWN_MACHINE: Final = MachineMarks()


@dataclass(frozen=True)
class Lease:
    """The lease: the current epoch, the holder that may write, and the newest image."""

    epoch: Epoch  # number that each acquisition of the lease increments; 0 if never acquired
    holder: str  # random name of the state directory that may write; printable
    host: str  # name of the host; only shown to users
    pid: int  # process id of the daemon; only shown to users
    since_ns: int  # time at which the epoch began; only shown to users
    released: bool  # True if the holder released the lease; then any host may acquire it
    head: Head | None  # reference to the head image; None if there is no image yet
    nonce: str | None  # random number, new at each acquisition; None in format version 1
    machine: MachineMarks = UNKNOWN_MACHINE  # the machine on which the holder runs


def encode(lease: Lease) -> bytes:
    """Encode a lease; return the bytes of the object KEY.

    Raises:
        FormatError: a field is out of range, which is a bug; the object must not be stored.
    """
    data = text_object.encode(
        "lease",
        VERSION,
        {
            "epoch": lease.epoch,
            "holder": lease.holder,
            "nonce": lease.nonce,
            "machine": lease.machine._asdict(),
            "host": lease.host,
            "pid": lease.pid,
            "since_ns": lease.since_ns,
            "released": lease.released,
            "head": lease.head and lease.head._asdict(),
        },
    )
    if decode(KEY, data) != lease:
        raise FormatError(
            KEY, "bug: the encoded lease decodes to other values, so it was not stored"
        )
    return data


def decode(key: ObjectKey, data: bytes | memoryview) -> Lease:
    """Return the lease in the object *key*.

    Raises:
        NewerFormatError: the object has a version that this program does not know.
        FormatError: the object is damaged.
    """
    version = text_object.version_of("lease", key, data)
    if version != _WITHOUT_NONCE:
        version = VERSION
    fields = text_object.decode("lease", version, key, data)
    nonce, machine = None, UNKNOWN_MACHINE
    if version == VERSION:
        nonce = fields.hexadecimal("nonce", NONCE_BYTES)
        machine = _machine(fields.inner("machine"))
    lease = Lease(
        epoch=Epoch(fields.integer("epoch")),
        holder=fields.text("holder", HOLDER_CHARS_MAX),
        host=fields.text("host", HOST_CHARS_MAX),
        pid=fields.integer("pid"),
        since_ns=fields.integer("since_ns"),
        released=fields.boolean("released"),
        head=fields.optional("head", lambda name: _head(key, fields.inner(name))),
        nonce=nonce,
        machine=machine,
    )
    fields.finish()
    return lease


def encode_head(head: Head) -> str:
    """Return the head as JSON text, for the local state."""
    return dump(head._asdict()).decode("ascii")


def decode_head(where: str, text: str) -> Head:
    """Return the head in a JSON text; errors name *where* as the source of the text.

    Raises:
        FormatError: the text is not the JSON of a head.
    """
    return _head(where, Fields.parse(where, text.encode("ascii", "replace")))


def _head(key: str, fields: Fields) -> Head:
    head = Head(
        Txg(fields.integer("txg")),
        ObjectKey(fields.text("manifest_key", KEY_BYTES_MAX)),
        fields.hexadecimal("manifest_hash", HASH_BYTES),
    )
    fields.finish()
    name = parse_manifest_key(head.manifest_key)
    if name is None or name.txg != head.txg:
        raise FormatError(key, "the txg of the lease's head does not match the name of the image")
    return head


def _machine(fields: Fields) -> MachineMarks:
    def mark(name: str) -> str:
        return fields.hexadecimal(name, MARK_BYTES)

    marks = MachineMarks(fields.optional("machine_id", mark), fields.optional("product_uuid", mark))
    fields.finish()
    return marks
