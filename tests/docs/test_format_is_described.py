"""A test reader that implements docs/design/format.md and reads the program's objects.

The reader follows only this page, and uses no module of ``s3fs_meta.codec``.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
import zstandard
from blake3 import blake3
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec.key_slots import CHEAPEST_COST
from s3fs_meta.limits import MIB
from s3fs_meta.objects.local import LocalStore
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.administration.mkfs import NewFilesystem, make_filesystem
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import write_file

PASSPHRASE = b"secret"
VERSIONS = {"superblock": 3, "lease": 2}
CONTENTS = {b"first" * 1000, bytes(range(256)) * 256, b"x"}


def _derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt, info).derive(secret)


def _plain(compressed: bytes, plain_bytes: int) -> bytes:
    if compressed[0] == 0:
        return compressed[1:]
    assert compressed[0] == 1
    return zstandard.ZstdDecompressor().decompress(compressed[1:], max_output_size=plain_bytes)


class Section(NamedTuple):
    """The changes of a txg in one changelog, part or level."""

    locations: dict[int, tuple[Any, ...]]  # The location of each block, by block number.
    changeset: bytes


def _section(data: bytes) -> Section:
    (count,) = struct.unpack(">I", data[:4])
    end = 4 + 64 * count
    places = list(struct.iter_unpack(">QIQQI32s", data[4:end]))
    assert len(places) == count
    return Section({place[0]: place for place in places}, data[end:])


class Reader:
    """A reader of a bucket in a local directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        superblock = self._text("superblock")
        self._master = self._unlocked(superblock)
        if self._master:
            self._hash_key = _derived(self._master, b"", b"s3fs-meta block hash 1")
        else:
            self._hash_key = bytes.fromhex(superblock["hash_key"])
        context = "s3fs-meta 2025 checksum of a stored object 1"
        self._checksum_key = blake3(self._hash_key, derive_key_context=context).digest()
        if self._master:
            fields = json.dumps({**superblock, "authenticator": None}, sort_keys=True, indent=1)
            found = self._checksum(b"superblock", b"3", fields.encode())
            assert found.hex() == superblock["authenticator"]

    def _text(self, name: str) -> dict[str, Any]:
        head, rest = (self._root / name).read_bytes().split(b"\n", 1)
        body, last = rest.rstrip(b"\n").rsplit(b"\n", 1)
        assert head == b"s3fs-meta %s %d" % (name.encode(), VERSIONS[name])
        assert last == b"blake3 " + blake3(head + b"\n" + body + b"\n").hexdigest().encode()
        fields = json.loads(body)
        assert isinstance(fields, dict)
        return fields

    @staticmethod
    def _unlocked(superblock: dict[str, Any]) -> bytes:
        lock = superblock["wrapped_by_passphrase"]
        if lock is None:
            return b""
        secret = Argon2id(
            salt=bytes.fromhex(lock["salt"]),
            length=32,
            iterations=lock["iterations"],
            lanes=lock["lanes"],
            memory_cost=lock["memory_kib"],
        ).derive(PASSPHRASE)
        key = _derived(secret, b"", b"s3fs-meta lock 1 passphrase")
        wrapped = bytes.fromhex(lock["wrapped"])
        return AESGCM(key).decrypt(bytes(12), wrapped, superblock["uuid"].encode())

    def _checksum(self, *parts: bytes) -> bytes:
        hasher = blake3(key=self._checksum_key)
        for part in parts:
            hasher.update(struct.pack(">Q", len(part)) + part)
        return hasher.digest()

    def _envelope(self, key: str, kind: bytes) -> bytes:
        data = (self._root / key).read_bytes()
        header, salt, body = data[:40], data[24:40], data[40:]
        fields = struct.unpack(">8sHH8sI", data[:24])
        assert fields[:4] == (b"S3FSMETA", 1, int(bool(self._master)), kind.ljust(8, b"\0"))
        if self._master:
            cipher = AESGCM(_derived(self._master, salt, b"s3fs-meta envelope 1"))
            body = cipher.decrypt(bytes(12), body, header + key.encode())
        else:
            body, checksum = body[:-32], body[-32:]
            assert salt == bytes(16)
            assert checksum == self._checksum(b"envelope", header, key.encode(), body)
        return _plain(body, fields[4])

    def database(self) -> tuple[dict[str, Any], bytes]:
        """Return the newest manifest and the database of its image."""
        head = self._text("lease")["head"]
        stored = (self._root / head["manifest_key"]).read_bytes()
        assert blake3(stored).hexdigest() == head["manifest_hash"]
        manifest = json.loads(self._envelope(head["manifest_key"], b"manifest"))
        pieces = []
        for key, plain_bytes, piece_hash in manifest["pieces"]:
            pieces.append(self._envelope(key, b"piece"))
            assert len(pieces[-1]) == plain_bytes
            assert blake3(pieces[-1]).hexdigest() == piece_hash
        assert sum(map(len, pieces)) == manifest["database_bytes"]
        assert manifest["version"] == 2
        return manifest, b"".join(pieces)

    def links(self, txg: int, previous: str) -> Iterator[tuple[dict[str, Any], list[Section]]]:
        """Yield the header of each changelog after a txg, with all sections of its changes."""
        while (self._root / (key := f"changelog/{txg + 1:012d}")).exists():
            payload = self._envelope(key, b"changes")
            (header_bytes,) = struct.unpack(">I", payload[:4])
            header = json.loads(payload[4 : 4 + header_bytes])
            assert (header["version"], header["txg"]) == (1, txg + 1)
            assert header["previous"] == previous
            sections = []
            for part, part_hash in header["parts"]:
                assert blake3((self._root / part).read_bytes()).hexdigest() == part_hash
                sections.append(_section(self._envelope(part, b"part")))
            sections.append(_section(payload[4 + header_bytes :]))
            yield header, sections
            previous = blake3((self._root / key).read_bytes()).hexdigest()
            txg += 1

    def block(self, key: str, place: tuple[Any, ...]) -> bytes:
        """Return the content of one block, read from its record."""
        _block, plain_bytes, _pack, offset, stored_bytes, block_hash = place
        with (self._root / key).open("rb") as file:
            file.seek(offset)
            record = file.read(stored_bytes)
        content = self._record(key, offset, record, b"block", plain_bytes)
        assert blake3(content, key=self._hash_key).digest() == block_hash
        return content

    def blocks(self, key: str) -> Iterator[bytes]:
        """Yield the blocks that the index of a pack lists."""
        pack = (self._root / key).read_bytes()
        index_bytes, entries, version, flags = struct.unpack(">IIHH", pack[-52:-40])
        assert (version, flags, pack[-8:]) == (1, int(bool(self._master)), b"S3FSPACK")
        index_at = len(pack) - 52 - index_bytes
        index_record = pack[index_at:-52]
        assert pack[-40:-8] == self._checksum(b"pack", key.encode(), index_record, pack[-52:-40])
        index = self._record(key, index_at, index_record, b"index", 64 * entries)
        assert len(index) == 64 * entries
        offset = 0
        for entry in struct.iter_unpack(">QQQII32s", index):
            plain_bytes, stored_bytes, block_hash = entry[3:]
            record = pack[offset : offset + stored_bytes]
            content = self._record(key, offset, record, b"block", plain_bytes)
            assert blake3(content, key=self._hash_key).digest() == block_hash
            yield content
            offset += stored_bytes
        assert offset == index_at

    def _record(self, key: str, offset: int, record: bytes, kind: bytes, limit: int) -> bytes:
        if self._master:
            info = b"s3fs-meta pack 1 " + key.encode()
            cipher = AESGCM(_derived(self._master, record[:8], info))
            record = cipher.decrypt(offset.to_bytes(12, "big"), record[8:], kind)
        return _plain(record, limit)


async def _write(root: Path, state: Path, *, encrypted: bool) -> None:
    """Create a filesystem with some files, and upload it to the bucket."""
    store = LocalStore(root)
    passphrase = PASSPHRASE if encrypted else None
    wanted = NewFilesystem("x", 1 * MIB, 4096, passphrase, cost=CHEAPEST_COST)
    await make_filesystem(store, wanted, state, SystemClock())
    opened = await open_filesystem(
        store, StateDir(state / "s"), Passphrase(lambda: PASSPHRASE), SystemClock(), OpenOptions()
    )
    session = Session(opened, SessionOptions(), SystemClock())
    session.recover()
    session.start()
    for content in CONTENTS:
        write_file(session, content)
    await session.flush()
    await close_filesystem(opened, release=True)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_reader_that_follows_only_the_format_page_can_read_a_bucket(
    tmp_path: Path, encrypted: bool
) -> None:
    for name in ("bucket", "state"):
        (tmp_path / name).mkdir()  # noqa: ASYNC240 - no other task runs
    await _write(tmp_path / "bucket", tmp_path / "state", encrypted=encrypted)

    reader = Reader(tmp_path / "bucket")
    manifest, database = reader.database()
    (tmp_path / "db").write_bytes(database)  # noqa: ASYNC240 - no other task runs
    db = apsw.Connection(str(tmp_path / "db"))
    packs: dict[int, str] = {}
    places: dict[int, tuple[Any, ...]] = {}
    kinds = []
    for header, sections in reader.links(manifest["txg"], manifest["changelog"]):
        kinds.append(header["kind"])
        packs.update({pack: key for pack, key, _bytes, _state in header["packs"]})
        for section in sections:
            apsw.Changeset.apply(section.changeset, db)
            places.update(section.locations)
    named = [block for (block,) in db.execute("SELECT block FROM block_map")]
    db.close()

    assert kinds[0] == "fence"
    assert set(kinds[1:]) == {"group"}
    assert {reader.block(packs[places[block][2]], places[block]) for block in named} == CONTENTS
    assert {block for key in packs.values() for block in reader.blocks(key)} == CONTENTS
