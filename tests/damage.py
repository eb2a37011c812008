"""Damage to the bytes of objects."""


def flipped(data: bytes | memoryview, at: int, bit: int = 0) -> bytes:
    """Return *data* with one bit of byte *at* flipped."""
    damaged = bytearray(data)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


def claim_newer(data: bytes) -> bytes:
    """Return an envelope with a version that no program has, and a wrong last bit.

    Without the wrong bit the envelope would be authentic in the present version, and so count as
    damaged.
    """
    return data[:9] + b"\7" + data[10:-1] + bytes([data[-1] ^ 1])
