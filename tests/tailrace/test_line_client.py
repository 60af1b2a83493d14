"""The sans-IO client: whatever the pieces bytes come in, the outcome is the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.line_client import (
    ANSWER_MAX_BYTES,
    HEAD_MAX_BYTES,
    MESSAGE_MAX_BYTES,
    AckReader,
    Message,
    MessageReader,
    ProtocolFault,
    PublishEncoder,
    Refusal,
    parse_error,
)

NASTY = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\r", b"\r\n", b"\n\n", b"msg s 0 0 0 |", b"ok sub s 3\r\n", b"|", b"\xff\xff\x00"]),
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at the places `cuts`, each taken modulo its length."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=8)


# --- publishing -------------------------------------------------------------------------------------------------------


def encode(blocks: list[bytes], stream: str = "s") -> tuple[bytes, int]:
    encoder = PublishEncoder(stream)
    encoded = b"".join([encoder.encode(block) for block in blocks])
    return encoded + encoder.finish(), encoder.lines


@pytest.mark.parametrize(
    ("text", "commands", "lines"),
    [
        (b"", b"", 0),
        (b"\n", b"pub s |\r\n", 1),
        (b"a", b"pub s |a\r\n", 1),
        (b"a\n", b"pub s |a\r\n", 1),
        (b"a\nb", b"pub s |a\r\npub s |b\r\n", 2),
        (b"a\r\n\r\n", b"pub s |a\r\r\npub s |\r\r\n", 2),
        (b"a|b\0\n", b"pub s |a|b\0\r\n", 1),
    ],
)
def test_lines_become_commands(text: bytes, commands: bytes, lines: int) -> None:
    assert encode([text]) == (commands, lines)
    assert encode([text[i : i + 1] for i in range(len(text))]) == (commands, lines)


@given(st.lists(st.binary(max_size=10).map(lambda line: line.replace(b"\n", b""))), st.booleans(), CUTS)
def test_blocks_may_be_cut_anywhere(payloads: list[bytes], unended: bool, cuts: list[int]) -> None:
    text = b"".join(payload + b"\n" for payload in payloads)
    if unended and payloads and payloads[-1]:
        text = text[:-1]
    expected = b"".join("pub é |".encode() + payload + b"\r\n" for payload in payloads)
    assert encode(pieces(text, cuts), "é") == (expected, len(payloads))


def test_lines_are_counted_as_soon_as_they_begin() -> None:
    encoder = PublishEncoder("s")
    encoder.encode(b"a\nb")
    assert encoder.lines == 2
    encoder.encode(b"c\n")
    assert encoder.lines == 2
    encoder.encode(b"")
    encoder.finish()
    assert encoder.lines == 2


# --- acknowledgements -------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.sampled_from(["size", "full"])), max_size=30), CUTS)
def test_each_line_gets_its_answer_in_whatever_pieces(codes: list[str | None], cuts: list[int]) -> None:
    seq, text, expected = 10, b"ok ack on\r\n", []
    for line, code in enumerate(codes, start=1):
        if code is None:
            text += b"ok pub s %d\r\n" % seq
            seq += 2  # other publishers are at work, too
        else:
            text += f"err {code} s: why not\r\n".encode()
            expected.append(Refusal(code, "s: why not", line))
    answers = AckReader("s")
    told = [refusal for piece in pieces(text, cuts) for refusal in answers.feed(piece)]
    assert told == expected
    assert answers.answered == len(codes)
    assert answers.acknowledged == codes.count(None)
    assert (answers.first_seq, answers.last_seq) == ((10, seq - 2) if seq > 10 else (-1, -1))


def test_an_error_of_the_connection_answers_no_line() -> None:
    answers = AckReader("s")
    assert answers.feed(b"ok pub s 0\r\nerr closing the broker stops\r\n") == [
        Refusal("closing", "the broker stops", 0)
    ]
    assert answers.answered == 1


def test_the_end_of_a_run_without_acknowledgements() -> None:
    answers = AckReader("s")
    answers.feed(b"err full s: 7 messages: no space\r\nok po")
    assert not answers.ponged
    answers.feed(b"ng\r\n")
    assert answers.ponged


@pytest.mark.parametrize(
    "text",
    [
        b"ok pub s 3\r\nok pub s 3\r\n",
        b"ok pub s 3\r\nok pub s 2\r\n",
        b"ok pub s 3\r\nok pub s 9\r\nok pub s 4\r\n",
        b"ok pub other 3\r\n",
        b"ok pub s x\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"x" * (ANSWER_MAX_BYTES + 1),
    ],
)
def test_answers_that_break_a_promise(text: bytes) -> None:
    with pytest.raises(ProtocolFault):
        AckReader("s").feed(text)


def test_seqs_must_rise_over_pieces_too() -> None:
    answers = AckReader("s")
    answers.feed(b"ok pub s 5\r\n")
    with pytest.raises(ProtocolFault, match="do not rise: 5, then 5 to 5 for 1 lines"):
        answers.feed(b"ok pub s 5\r\n")


@given(st.binary(max_size=100), CUTS)
def test_any_bytes_are_answers_or_a_fault(data: bytes, cuts: list[int]) -> None:
    answers = AckReader("s")
    try:
        for piece in pieces(data, cuts):
            answers.feed(piece)
    except ProtocolFault:
        pass


def test_errors_are_told_from_other_lines() -> None:
    assert parse_error(b"err size too large") == ("size", "too large")
    assert parse_error(b"err size") == ("size", "")
    assert parse_error(b"ok err") is None


# --- messages ---------------------------------------------------------------------------------------------------------


def read_all(reader: MessageReader) -> list[Message | bytes]:
    """Everything there is now, in order."""
    found: list[Message | bytes] = []
    while True:
        messages, line = reader.read()
        found += messages
        if line is not None:
            found.append(line)
        elif not messages:
            return found


def wire(message: Message) -> bytes:
    return b"msg s %d %d %d |%s\r\n" % (message.seq, message.timestamp_us, len(message.payload), message.payload)


@given(st.lists(st.one_of(NASTY, st.just(None)), max_size=12), CUTS)
def test_messages_and_lines_in_whatever_pieces(payloads: list[bytes | None], cuts: list[int]) -> None:
    expected: list[Message | bytes] = []
    text = b""
    for seq, payload in enumerate(payloads):
        if payload is None:
            expected.append(b"ok sub s %d" % seq)
            text += b"ok sub s %d\r\n" % seq
        else:
            expected.append(Message(seq, 7_000_000 + seq, payload))
            text += wire(Message(seq, 7_000_000 + seq, payload))
    reader = MessageReader()
    found = []
    for piece in pieces(text, cuts):
        reader.feed(piece)
        found += read_all(reader)
    assert found == expected


def test_a_batch_comes_whole_and_before_the_line_behind_it() -> None:
    reader = MessageReader()
    reader.feed(
        wire(Message(0, 1, b"a")) + wire(Message(1, 1, b"b")) + b"err trimmed gone\r\n" + wire(Message(2, 1, b"c"))
    )
    assert reader.read() == ([Message(0, 1, b"a"), Message(1, 1, b"b")], b"err trimmed gone")
    assert reader.read() == ([Message(2, 1, b"c")], None)
    assert reader.read() == ([], None)


def test_a_large_message_is_put_together_once() -> None:
    """Joining what came at every piece would copy the whole each time."""
    reader = MessageReader()
    large = Message(0, 1, b"x" * 1_000_000)
    data = wire(large)
    reader.feed(data[:50])
    assert reader.read() == ([], None)
    for start in range(50, len(data) - 1, 1_000):
        reader.feed(data[start : min(start + 1_000, len(data) - 1)])
        assert reader.read() == ([], None)
        assert len(reader._data) <= 50  # nothing has been joined
    reader.feed(data[-1:])
    assert reader.read() == ([large], None)


@pytest.mark.parametrize(
    "text",
    [
        b"msg s 0 0 |x\r\n",
        b"msg s 0 0 zero |x\r\n",
        b"msg s 0 0 -3 |x\r\n",
        b"msg s 0 0 1 1 |x\r\n",
        b"msg s 0 0 1 |xy\r\n",
        b"msg s 0 0 %d |x" % (MESSAGE_MAX_BYTES + 1),
        b"msg " + b"s" * HEAD_MAX_BYTES,
        b"x" * (ANSWER_MAX_BYTES + 1),
    ],
)
def test_what_is_no_message(text: bytes) -> None:
    reader = MessageReader()
    reader.feed(text)
    with pytest.raises(ProtocolFault):
        read_all(reader)


def test_a_negative_length_does_not_lead_back() -> None:
    """Its end would be the line end before the message, where the next one begins: for ever."""
    reader = MessageReader()
    reader.feed(b"\r\nmsg s 0 0 -17 |x\r\n")
    assert reader.read() == ([], b"")
    with pytest.raises(ProtocolFault, match="not the head of a message"):
        reader.read()


@given(st.binary(max_size=100), CUTS)
def test_any_bytes_are_messages_or_lines_or_a_fault(data: bytes, cuts: list[int]) -> None:
    reader = MessageReader()
    try:
        for piece in pieces(b"msg " + data, cuts):
            reader.feed(piece)
            read_all(reader)
    except ProtocolFault:
        pass
