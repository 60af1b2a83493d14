"""The identity of a file: its mount, its device and its inode, as one word of a header page.

A volume that was lost and mounted again, or a copy that was put back, has another word in the same boot. So has the
same file in another mount namespace: a different word only means that it is unknown whether the machine kept all
written bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from typing import Final

_AT_EMPTY_PATH: Final = 0x1000
_STATX_INO: Final = 0x100
_STATX_MNT_ID: Final = 0x1000
_STATX_MNT_ID_UNIQUE: Final = 0x4000
"""A mount id that is not given to a later mount: Linux 6.8. Before that the kernel ignores the bit."""
_STATX_BYTES: Final = 256
_MASK: Final = struct.Struct("<I")
_INODE: Final = struct.Struct("<32xQ96xIIQ")
"""stx_ino, stx_dev_major, stx_dev_minor, stx_mnt_id."""

_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
if _statx is not None:
    _statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)


def place_word(fd: int) -> int:
    """Returns 48 bits, never 0, that identify the open file's place; 0 if the kernel does not report the mount."""
    if _statx is None:
        return 0
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(fd, b"", _AT_EMPTY_PATH, _STATX_INO | _STATX_MNT_ID | _STATX_MNT_ID_UNIQUE, found):
        return 0
    (mask,) = _MASK.unpack_from(found)
    if not mask & (_STATX_MNT_ID | _STATX_MNT_ID_UNIQUE):
        return 0
    text = repr(_INODE.unpack_from(found)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little") or 1
