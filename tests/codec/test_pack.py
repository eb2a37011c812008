"""Packs: encoding, decoding, records of single blocks, keys and damage."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import pack as pack_module
from s3fs_meta.codec.compression import COMPRESSION_NAMES
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.pack import (
    FIELDS,
    TRAILER_BYTES,
    Pack,
    PackEntry,
    PackWriter,
    index_tail_bytes,
    new_key,
    open_block,
    open_pack,
    parse_key,
    read_index,
    trailer_checksum,
    view_block,
)
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    BLOCK_BYTES_MAX,
    PACK_BLOCKS_MAX,
    PACK_BYTES_MAX,
    PACK_BYTES_TARGET,
    PACK_TAIL_BYTES,
)
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino, ObjectKey
from s3fs_meta.objects.contract import check_key
from tests.codec.keyrings import ENCRYPTED, PLAIN, both
from tests.damage import flipped

KEY = new_key(Epoch(7), bytes(range(16)))
OTHER_KEY = new_key(Epoch(7), bytes(range(1, 17)))


def contents(count: int) -> list[bytes]:
    """Return *count* small blocks; every second block is incompressible."""
    noise = random.Random(3)
    return [noise.randbytes(50 + i) if i % 2 else bytes([i]) * (100 + i) for i in range(count)]


def make_pack(keyring: Keyring, blocks: list[bytes], key: ObjectKey = KEY) -> Pack:
    """Return a pack of *blocks*, numbered from 100."""
    writer = PackWriter(key, keyring, "zstd-1")
    for i, data in enumerate(blocks):
        writer.add(
            BlockId(100 + i),
            Ino(10),
            BlockIndex(i),
            keyring.block_hash(data),
            memoryview(data),
        )
    return writer.finish()


def stored(pack: Pack, entry: PackEntry) -> bytes:
    """Return the bytes of one block's record, as a range read of the pack would."""
    return bytes(pack.data[entry.offset : entry.offset + entry.stored_bytes])


def open_entry(keyring: Keyring, key: ObjectKey, data: bytes, entry: PackEntry) -> bytes:
    """Open the record of one block as its index entry describes it."""
    return open_block(keyring, key, data, entry.offset, entry.plain_bytes, entry.hash)


@both
def test_reading_a_block_requires_only_its_record_in_the_pack(keyring: Keyring) -> None:
    blocks = contents(10)
    pack = make_pack(keyring, blocks)

    assert [open_entry(keyring, KEY, stored(pack, e), e) for e in pack.entries] == blocks


def test_uncompressed_block_of_a_plain_pack_is_a_view_of_its_record() -> None:
    """``view_block`` verifies a block without copying it; ``open_block`` returns a copy."""
    noise = random.Random(1).randbytes(10_000)
    pack = make_pack(PLAIN, [noise])
    record, entry = stored(pack, pack.entries[0]), pack.entries[0]
    arguments = (PLAIN, KEY, record, entry.offset, entry.plain_bytes, entry.hash)

    view = view_block(*arguments)

    assert isinstance(view, memoryview)
    assert (view.obj is record, bytes(view)) == (True, noise)
    assert isinstance(open_block(*arguments), bytes)


@both
def test_index_of_a_pack_lists_its_blocks(keyring: Keyring) -> None:
    """The index of a pack contains all values that are needed to rebuild the rows of its blocks."""
    pack = make_pack(keyring, contents(10))

    entries = read_index(keyring, KEY, pack.data, len(pack.data))

    assert entries == pack.entries
    assert [(e.block, e.ino, e.block_index) for e in entries] == [
        (100 + i, 10, i) for i in range(10)
    ]
    assert [e.hash for e in entries] == [keyring.block_hash(data) for data in contents(10)]


@both
def test_opening_a_pack_returns_every_block_with_its_index_entry(keyring: Keyring) -> None:
    pack = make_pack(keyring, contents(5))

    assert list(open_pack(keyring, KEY, pack.data)) == list(
        zip(pack.entries, contents(5), strict=True)
    )


@both
def test_index_of_a_pack_needs_at_most_two_range_reads(keyring: Keyring) -> None:
    """If the first range read contains only part of a pack's index, the second reads the rest."""
    pack = make_pack(keyring, [i.to_bytes(4, "big") for i in range(3000)])
    size = len(pack.data)
    first = pack.data[-PACK_TAIL_BYTES:]

    needed = index_tail_bytes(KEY, first, size)

    assert PACK_TAIL_BYTES < needed < size
    with pytest.raises(FormatError, match="complete index"):
        read_index(keyring, KEY, first, size)
    assert read_index(keyring, KEY, pack.data[-needed:], size) == pack.entries


def test_encrypted_pack_reveals_neither_content_nor_hashes() -> None:
    data = b"a text that an attacker knows is stored here" * 10
    pack = make_pack(ENCRYPTED, [data])

    text = bytes(pack.data)
    assert b"attacker" not in text
    assert ENCRYPTED.block_hash(data) not in text
    assert PLAIN.block_hash(data) not in text


def test_two_packs_with_the_same_object_key_have_different_encryption_keys() -> None:
    """If two packs get the same object key by mistake, their encryption keys still differ."""
    first, second = (make_pack(ENCRYPTED, [bytes(100)]) for _ in range(2))

    assert stored(first, first.entries[0])[8:] != stored(second, second.entries[0])[8:]


@both
def test_record_of_a_pack_cannot_be_opened_with_keys_of_another_filesystem(
    keyring: Keyring,
) -> None:
    pack = make_pack(keyring, contents(3))
    other = Keyring.from_master(bytes(32)) if keyring.encrypted else Keyring(None, bytes([1]) * 32)

    with pytest.raises(FormatError):
        read_index(other, KEY, pack.data, len(pack.data))
    for entry in pack.entries:
        with pytest.raises(FormatError):
            open_entry(other, KEY, stored(pack, entry), entry)


@both
def test_plain_keyring_cannot_open_encrypted_packs_and_vice_versa(keyring: Keyring) -> None:
    """A plain filesystem rejects encrypted packs, and an encrypted one rejects plain packs."""
    other = PLAIN if keyring.encrypted else ENCRYPTED
    pack = make_pack(other, contents(3))

    with pytest.raises(FormatError, match="either the pack or its filesystem"):
        read_index(keyring, KEY, pack.data, len(pack.data))


def test_encrypted_record_can_be_opened_only_in_its_pack_and_at_its_offset() -> None:
    pack = make_pack(ENCRYPTED, [b"same" * 20, b"same" * 20])
    first, second = pack.entries

    with pytest.raises(FormatError, match="not authentic"):
        open_entry(ENCRYPTED, OTHER_KEY, stored(pack, first), first)
    with pytest.raises(FormatError, match="not authentic"):
        open_entry(ENCRYPTED, KEY, stored(pack, first), second)


@both
def test_index_of_a_renamed_pack_is_refused(keyring: Keyring) -> None:
    pack = make_pack(keyring, contents(2))

    with pytest.raises(FormatError, match="checksum"):
        read_index(keyring, OTHER_KEY, pack.data, len(pack.data))


@both
def test_record_with_the_wrong_hash_or_length_is_refused(keyring: Keyring) -> None:
    pack = make_pack(keyring, contents(2))
    entry = pack.entries[0]
    data = stored(pack, entry)

    with pytest.raises(FormatError):
        open_block(keyring, KEY, data, entry.offset, entry.plain_bytes, bytes(32))
    for plain_bytes in (-1, 0, entry.plain_bytes - 1, entry.plain_bytes + 1, BLOCK_BYTES_MAX + 1):
        with pytest.raises(FormatError):
            open_block(keyring, KEY, data, entry.offset, plain_bytes, entry.hash)


@both
def test_flipped_bit_in_every_byte_of_a_pack_is_detected(keyring: Keyring) -> None:
    pack = make_pack(keyring, contents(3))

    for at in range(len(pack.data)):
        damaged = flipped(pack.data, at, at % 8)
        with pytest.raises(FormatError):
            list(open_pack(keyring, KEY, damaged))


@both
def test_truncated_or_extended_pack_or_record_is_refused(keyring: Keyring) -> None:
    pack = make_pack(keyring, contents(3))
    entry = pack.entries[0]

    for cut in range(len(pack.data)):
        with pytest.raises(FormatError):
            list(open_pack(keyring, KEY, pack.data[:cut]))
        with pytest.raises(FormatError):
            list(open_pack(keyring, KEY, pack.data[cut + 1 :]))
    for extra in (b"\0", b"x" * 100, bytes(pack.data)):
        with pytest.raises(FormatError):
            list(open_pack(keyring, KEY, bytes(pack.data) + extra))
        with pytest.raises(FormatError):
            list(open_pack(keyring, KEY, extra + bytes(pack.data)))
        with pytest.raises(FormatError):
            open_entry(keyring, KEY, stored(pack, entry) + extra, entry)
    for cut in range(entry.stored_bytes):
        with pytest.raises(FormatError):
            open_entry(keyring, KEY, stored(pack, entry)[:cut], entry)


def test_error_about_a_newer_pack_version_advises_an_upgrade() -> None:
    data = bytes(make_pack(PLAIN, contents(1)).data)
    index_bytes, entries, _, _ = FIELDS.unpack(data[-TRAILER_BYTES:][: FIELDS.size])
    record = data[-TRAILER_BYTES - index_bytes : -TRAILER_BYTES]
    for version, flags, number in [(2, 0, entries), (1, 2, entries), (2, 0, 0)]:
        fields = FIELDS.pack(index_bytes, number, version, flags)
        checksum = trailer_checksum(PLAIN, KEY, record, fields)
        newer = data[:-TRAILER_BYTES] + fields + checksum + data[-8:]

        with pytest.raises(NewerFormatError, match="upgrade"):
            read_index(PLAIN, KEY, newer, len(newer))


@both
def test_error_about_a_damaged_pack_version_advises_no_upgrade(keyring: Keyring) -> None:
    """If a pack's trailer is authentic except for the version field, this field is damaged."""
    data = bytes(make_pack(keyring, contents(3)).data)

    # Bytes 8 to 11 of a pack's trailer are the version and the flags.
    for at in range(-TRAILER_BYTES + 8, -TRAILER_BYTES + 12):
        with pytest.raises(FormatError) as refused:
            read_index(keyring, KEY, flipped(data, at, 3), len(data))
        assert not isinstance(refused.value, NewerFormatError)


def test_key_of_a_pack_contains_its_epoch() -> None:
    """The object key of a pack contains its epoch and a random number."""
    key = new_key(Epoch(12), bytes.fromhex("3f" + "00" * 15))

    check_key(key)
    assert key == "pack/3f/12-3f" + "00" * 15
    assert parse_key(key) == 12


@pytest.mark.parametrize(
    "key",
    [
        "",
        "pack/",
        "lease",
        KEY + "0",
        KEY[:-1],
        KEY + "\n",
        KEY.upper(),
        KEY.replace("/00/", "/01/"),
        KEY.replace("/7-", "/07-"),
        KEY.replace("/7-", "/-7-"),
        "x" + KEY,
    ],
)
def test_malformed_key_is_not_parsed_as_a_pack(key: str) -> None:
    assert parse_key(key) is None


def test_last_block_may_exceed_the_target_size_of_a_pack() -> None:
    writer = PackWriter(KEY, PLAIN, "none")
    data = bytes(BLOCK_BYTES_MAX)
    digest = PLAIN.block_hash(data)
    fullness = [writer.full]
    writer.add(BlockId(1), Ino(1), BlockIndex(0), digest, data)
    fullness.append(writer.full)

    assert fullness == [False, True]
    assert writer.size_bytes >= PACK_BYTES_TARGET
    with pytest.raises(AssertionError, match="full"):
        writer.add(BlockId(2), Ino(1), BlockIndex(1), digest, data)

    assert len(writer.finish().data) <= PACK_BYTES_MAX


def test_pack_writer_is_full_at_the_maximum_number_of_blocks() -> None:
    writer = PackWriter(KEY, PLAIN, "none")
    digest = PLAIN.block_hash(b"x")
    while not writer.full:
        writer.add(BlockId(1), Ino(1), BlockIndex(0), digest, b"x")

    assert len(writer.finish().entries) == PACK_BLOCKS_MAX


def test_pack_writer_refuses_a_block_that_does_not_match_its_hash() -> None:
    """A block that changed after its hash was computed must not be written to a pack."""
    with pytest.raises(AssertionError, match="changed"):
        PackWriter(KEY, PLAIN, "none").add(BlockId(1), Ino(1), BlockIndex(0), bytes(32), b"data")


def test_pack_writer_refuses_an_empty_pack() -> None:
    """A pack without blocks is rejected, because garbage collection would never delete it."""
    with pytest.raises(AssertionError, match="empty"):
        PackWriter(KEY, PLAIN, "none").finish()


@settings(derandomize=True, max_examples=60)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.integers(1, 40)), min_size=1),
    st.booleans(),
    st.sampled_from(COMPRESSION_NAMES[:4]),
    st.tuples(*[st.integers(0, (1 << 63) - 1)] * 3),
)
def test_blocks_are_unchanged_after_they_are_packed_and_read(
    blocks: list[tuple[bytes, int]], encrypted: bool, name: str, numbers: tuple[int, int, int]
) -> None:
    """The contents and numbers of blocks can be read from the pack alone, without the database."""
    keyring = ENCRYPTED if encrypted else PLAIN
    writer = PackWriter(KEY, keyring, name)
    for data, times in blocks:
        writer.add(
            BlockId(numbers[0]),
            Ino(numbers[1]),
            BlockIndex(numbers[2]),
            keyring.block_hash(data * times),
            data * times,
        )
    read = list(open_pack(keyring, KEY, writer.finish().data))

    assert [content for _, content in read] == [data * times for data, times in blocks]
    assert {(e.block, e.ino, e.block_index) for e, _ in read} == {numbers}


@settings(derandomize=True, max_examples=80)
@given(st.binary(max_size=300), st.booleans(), st.booleans(), st.integers(-1, 1 << 40))
def test_random_bytes_are_refused_as_a_pack(
    data: bytes, magic: bool, encrypted: bool, object_bytes: int
) -> None:
    """For random bytes, the parsers of packs raise no error but FormatError."""
    keyring = ENCRYPTED if encrypted else PLAIN
    tail = data + b"S3FSPACK" if magic else data
    with pytest.raises(FormatError):
        read_index(keyring, KEY, tail, object_bytes)
    with pytest.raises(FormatError):
        read_index(keyring, KEY, tail, len(tail))
    with pytest.raises(FormatError):
        open_block(keyring, KEY, data, max(object_bytes, 0), len(data), bytes(32))


@settings(derandomize=True, max_examples=80)
@given(
    st.lists(
        st.tuples(
            *[st.integers(0, (1 << 64) - 1)] * 3,
            *[st.one_of(st.integers(0, 60), st.integers(0, (1 << 32) - 1))] * 2,
            st.binary(min_size=32, max_size=32),
        ),
        max_size=3,
    ),
    st.one_of(st.integers(0, 4), st.integers(0, (1 << 32) - 1)),
    st.integers(0, 100),
)
def test_pack_index_with_arbitrary_numbers_is_refused_unless_consistent(
    rows: list[tuple[int, int, int, int, int, bytes]], entries: int, record_bytes: int
) -> None:
    """A pack index with a valid checksum is rejected if it describes blocks outside its pack."""
    index = b"\0" + b"".join(pack_module.ENTRY.pack(*row) for row in rows)
    fields = pack_module.FIELDS.pack(len(index), entries, 1, 0)
    checksum = pack_module.trailer_checksum(PLAIN, KEY, index, fields)
    data = bytes(record_bytes) + index + fields + checksum + b"S3FSPACK"
    try:
        read = read_index(PLAIN, KEY, data, len(data))
    except FormatError:
        return
    assert len(read) == len(rows) == entries
    assert sum(entry.stored_bytes for entry in read) == record_bytes


def test_threads_can_read_blocks_of_one_pack_with_a_shared_keyring() -> None:
    blocks = [random.Random(i).randbytes(100) * 50 for i in range(20)]
    pack = make_pack(ENCRYPTED, blocks)

    def read(entry: PackEntry) -> bytes:
        return open_entry(ENCRYPTED, KEY, stored(pack, entry), entry)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, pack.entries * 10)) == blocks * 10


PLAIN_PACK_1 = bytes.fromhex(
    "0128b52ffd202845000010616101001f80050078797a0128b52ffd20803d03009405000064000a002800000012cf"
    "c90ccb6b0f008bb3d90d4cdfa2ed182060120baadc3cd2830f28fb4d4b75d30065000a00010000000300000004c7"
    "2a5d6237dfc38c282881a9f5a07f97ebe0b33ec35bd7fd780d563c5f46b9f2061000030fecf1361e7c6101000000"
    "710000000200010000ea8aa23c8888f3d418837b17c105afbcbff6ad82c9afac9f9ea8874412ccd9cc5333465350"
    "41434b"
)
ENCRYPTED_PACK_1 = bytes.fromhex(
    "0101010101010101d053db60ea100cfc9028b8b1a895cbec8fb8ed06fa3de9681b0b2de9d4ff48ade91a01010101"
    "0101010137afbb91571f0d6cce720ed4543b2025f7e22d5a010101010101010108f8b506cdecd80b0f15e02c7f05"
    "c165522e10d6470b6deea79078a6af3d8222a88bb110f79e9a183db5f45fa54a14add43f8474f9553fed8f5569e3"
    "d0a2d6103d09953a0b486243d1164830340ebbca2691641310429f62b126d6e53f5e5361b2396a28aaa0c0281591"
    "a4cd9e541c43a284e769141e9aeb9462f498534d48e4ed00000089000000020001000116a6ada7562c45b1801241"
    "1e4a46fccc43f1d56fea96264375769dc08e684a00533346535041434b"
)


@pytest.mark.parametrize(
    ("keyring", "data"), [(PLAIN, PLAIN_PACK_1), (ENCRYPTED, ENCRYPTED_PACK_1)]
)
def test_packs_of_version_1_can_still_be_read(keyring: Keyring, data: bytes) -> None:
    read = list(open_pack(keyring, KEY, data))

    assert [content for _, content in read] == [b"a" * 40, b"xyz"]
    assert [(e.block, e.ino, e.block_index) for e, _ in read] == [(100, 10, 0), (101, 10, 1)]
