"""Damage to bytes in a store."""


def flipped(data: bytes | memoryview, at: int, bit: int = 0) -> bytes:
    """Return *data* with one bit of byte *at* flipped."""
    damaged = bytearray(data)
    damaged[at] ^= 1 << bit
    return bytes(damaged)
