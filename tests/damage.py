"""Damage to bytes in a store."""


def flipped(data: bytes | memoryview, at: int, bit: int = 0) -> bytes:
    """Return *data* with one bit of byte *at* flipped."""
    damaged = bytearray(data)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


def claim_newer(data: bytes) -> bytes:
    """Return an envelope of an unknown version whose claim cannot be verified.

    One bit at its end is flipped, because an envelope that is authentic once it has the present
    version counts as damaged.
    """
    return data[:9] + b"\7" + data[10:-1] + bytes([data[-1] ^ 1])
