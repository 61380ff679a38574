"""The checksum in TensorBoard's event files: CRC32C, masked as TensorFlow does it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed
_MASK_DELTA = 0xA282EAD8
_BOTH = 0xFFFFFFFF


def masked_crc32c(data: bytes) -> bytes:
    """Return the four bytes that a record has as the checksum of `data`."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & _BOTH)


def crc32c(data: Iterable[int]) -> int:
    """Return the CRC32C (Castagnoli) of bytes, as RFC 3720, appendix B.4 has it."""
    crc = _BOTH
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ _BOTH


def _table() -> Iterator[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        yield crc


_TABLE = tuple(_table())
