"""The messages whose topics a filter matches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.topics import topic_in
from tailrace.spark.columns import Part, put_together
from tailrace.spark.source import Block


def filter_pattern(topic_filter: bytes) -> re.Pattern[bytes]:
    """What a topic must be for a valid filter to match it: as MQTT 5 has it in section 4.7."""
    hidden = rb"(?!\$)" if topic_filter[:1] in (b"+", b"#") else b""
    if topic_filter == b"#":
        return re.compile(hidden + rb".*", re.DOTALL)
    levels = topic_filter.removesuffix(b"/#").split(b"/")
    body = b"/".join(rb"[^/]*" if level == b"+" else re.escape(level) for level in levels)
    below = rb"(?:/.*)?" if topic_filter.endswith(b"/#") else b""
    return re.compile(hidden + body + below, re.DOTALL)


class TopicPicker:
    """Leaves out the messages whose topics a valid filter does not match."""

    def __init__(self, topic_filter: bytes) -> None:
        self._pattern = filter_pattern(topic_filter)

    def pick(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yields a part for each run of messages that match. `parts` have frames."""
        for part in parts:
            yield from self._runs(part)

    def _runs(self, part: Part) -> Iterator[Part]:
        messages, entries = put_together([part]), part.block.entries
        name, frames = part.ref.stream.encode(), messages.frames
        is_matched = np.full(entries.messages, self._is_matched(name))
        places = np.flatnonzero(messages.metadata_bytes)
        starts = messages.starts[places] + HEADER_BYTES
        ends = starts + messages.metadata_bytes[places]
        for place, start, end in zip(places.tolist(), starts.tolist(), ends.tolist(), strict=True):
            is_matched[place] = self._is_matched(topic_in(bytes(frames[start:end])) or name)
        if is_matched.all():
            yield part
            return
        bounds = [*messages.starts.tolist(), entries.nbytes]
        edges = np.flatnonzero(np.diff(is_matched, prepend=False, append=False)).tolist()
        for first, end in list(pairwise(edges))[::2]:
            yield Part(part.ref, Block(entries.part(first, end), frames[bounds[first] : bounds[end]]))

    def _is_matched(self, topic: bytes) -> bool:
        return self._pattern.fullmatch(topic) is not None
