from __future__ import annotations

import pytest

from tailrace.shard.frame import MAX_FRAME_BYTES, MAX_METADATA_BYTES, pack_frame, unpack_header


def test_a_frame_is_header_metadata_payload() -> None:
    frame = pack_frame(b"payload", flags=3, metadata=b"meta")
    assert frame[32:] == b"metapayload"
    assert unpack_header(frame) == (43, 0, 0, 0, 0, 3, 4)


def test_a_frame_has_a_greatest_length() -> None:
    assert len(pack_frame(bytes(MAX_FRAME_BYTES - 32))) == MAX_FRAME_BYTES
    with pytest.raises(ValueError, match="67108865 bytes"):
        pack_frame(bytes(MAX_FRAME_BYTES - 31))
    with pytest.raises(ValueError, match="65536 bytes of metadata"):
        pack_frame(b"", metadata=bytes(MAX_METADATA_BYTES + 1))
