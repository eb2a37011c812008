"""Functions that damage the bytes of objects."""


def flipped(data: bytes | memoryview, at: int, bit: int = 0) -> bytes:
    """Return a copy of *data* in which one bit of the byte at index *at* is flipped."""
    damaged = bytearray(data)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


def claim_newer(data: bytes) -> bytes:
    """Return an envelope with an unknown version number and a flipped last bit.

    Without the flipped bit, the envelope would be authentic with the current version number.
    The program would then report it as damaged, and not as newer.
    """
    return data[:9] + b"\7" + data[10:-1] + bytes([data[-1] ^ 1])
