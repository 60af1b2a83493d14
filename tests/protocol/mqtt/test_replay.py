"""Places of subscriptions that begin in the past."""

from __future__ import annotations

import pytest

from tailrace.protocol.mqtt.replay import WITH_SEQ, WITH_TIME, read_place, split_filter, wishes_of
from tailrace.protocol.places import FROM_NEW, From

NOW_US = 1_800_000_000_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"0", From("time", 0)),
        (b"earliest", From("time", 0)),
        (b"new", FROM_NEW),
        (b"latest", FROM_NEW),
        (b"1795235094767344", From("time", 1_795_235_094_767_344)),
        (b"2026-11-21T04:24:05Z", From("time", 1_795_235_045_000_000)),
        (b"2026-11-21T04:24:05", From("time", 1_795_235_045_000_000)),
        (b"2026-11-21T05:24:05+01:00", From("time", 1_795_235_045_000_000)),
        (b"-1h", From("time", NOW_US - 3_600_000_000)),
        (b"-1.5m", From("time", NOW_US - 90_000_000)),
        (b"-999999999w", From("time", 0)),
        (b"#7", From("seq", 7)),
        (b"@7", From("seq", 7)),
    ],
)
def test_places(text: bytes, place: From) -> None:
    assert read_place(text, NOW_US) == place


@pytest.mark.parametrize(
    "text", [b"?", b"-1", b"-1y", b"#", b"#-1", b"@x", b"9" * 30, b"1" * 65, b"yesterday", b"\xff", b"2026-13-01"]
)
def test_what_is_no_place(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_place(text, NOW_US)


@pytest.mark.parametrize(
    ("topic_filter", "parts"),
    [
        (b"a/#", (b"", b"", b"", b"a/#")),
        (b"$share/g/a/#", (b"g", b"", b"", b"a/#")),
        (b"$replay/-1h/a/#", (b"", b"-1h", b"", b"a/#")),
        (b"$replay//a", (b"", b"?", b"", b"a")),
        (b"$replay/0", (b"", b"0", b"", b"")),
        (b"$s/0/a", (b"", b"0", b"", b"a")),
        (b"$stream/x", (b"", b"", b"x", b"#")),
        (b"$stream/x/a/+", (b"", b"", b"x", b"a/+")),
        (b"$stream/", (b"", b"", b"$", b"#")),
    ],
)
def test_parts_of_filters(topic_filter: bytes, parts: tuple[bytes, ...]) -> None:
    assert split_filter(topic_filter) == parts


def test_user_properties() -> None:
    assert wishes_of([]) == (b"", 0)
    assert wishes_of([(b"from", b"0"), (b"else", b"x"), (b"with", b"seq, time,else")]) == (b"0", WITH_SEQ | WITH_TIME)
    assert wishes_of([(b"stream-offset", b"earliest")]) == (b"earliest", 0)
