"""The line codec: the same commands however the bytes are cut, clean errors for everything else, bounded memory."""

from __future__ import annotations

import time
import tracemalloc

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.protocol import commands as c
from tailrace.protocol.errors import Code
from tailrace.protocol.line import LineCodec
from tailrace.protocol.topics import escaped
from tailrace.shard.epochs import EPOCH_MAX
from tailrace.shard.frame import HEADER_BYTES, MAX_FRAME_BYTES
from tests.protocol.lines import (
    MAX_LINE_BYTES,
    MAX_MESSAGE_BYTES,
    codec,
    cut,
    cuts,
    feed,
    flat,
    messages,
    names,
    payload_bytes,
    replies,
)

SESSION = (
    b"pub s |one\r\npub s |two\nPUB t |\r\r\nping\r\nack on\npub s |\xff\0|\r\n\r\n \t\nsub s 0\r\nnonsense\r\n"
    b"pub $x |y\npub a b |y\npub t |" + b"z" * 300 + b"\r\nunsub s\r\nclose\r\n"
)
SESSION_COMMANDS: list[object] = [
    (b"s", b"one"),
    (b"s", b"two"),
    (b"t", b"\r"),
    c.Ping(),
    c.Ack(True),
    (b"s", b"\xff\0|"),
    c.Subscribe(b"s", c.From("time", 0)),
    Code.COMMAND,
    Code.RESERVED,
    Code.NAME,
    (b"t", b"z" * 300),
    c.Unsubscribe(b"s"),
    c.Close("close"),
]


def test_whole() -> None:
    assert flat(feed(codec(), [SESSION])) == SESSION_COMMANDS


def test_byte_by_byte() -> None:
    assert flat(feed(codec(), cut(SESSION, range(len(SESSION))))) == SESSION_COMMANDS


def test_cut_at_every_place() -> None:
    for place in range(len(SESSION) + 1):
        assert flat(feed(codec(), [SESSION[:place], SESSION[place:]])) == SESSION_COMMANDS, place


def test_with_trailing_bytes() -> None:
    fed = codec()
    assert flat(feed(fed, [SESSION + b"pub s |un"])) == SESSION_COMMANDS
    assert fed.pending_bytes == 9
    assert flat(feed(fed, [b"finished\r\n"])) == [(b"s", b"unfinished")]
    assert fed.pending_bytes == 0


def test_a_read_of_publishes_is_one_command() -> None:
    (staged,) = feed(codec(), [b"pub s |1\r\npub t |2\r\npub s |3\r\n"])
    assert isinstance(staged, c.Staged)
    assert [(name, count) for name, count, _ in staged.groups] == [(b"s", 2), (b"t", 1)]
    assert staged.order == []


@pytest.mark.parametrize("before", [b"", b"ping\n", b"pub s |cut", b"x" * 5_000])
def test_after_a_whole_line_the_fast_path_is_open(before: bytes) -> None:
    """It gives a tuple, where the slow path gives an iterator."""
    fed = codec(begun=True)
    feed(fed, [before, b"\n"])
    assert isinstance(fed.feed(b"pub s |x\n", 9), tuple)


def test_ack_holds_from_the_next_line_on() -> None:
    fed = codec()
    found = feed(fed, [b"pub s |1\nack on\npub s |2\npub t |3\n pub s |4\nack off\npub s |5\n pub s |6\n"])
    orders = [command.order for command in found if isinstance(command, c.Staged)]
    assert orders == [[], [0, 1], [0], [], []]
    feed(fed, [b"ack on\n"])
    (staged,) = feed(fed, [b"pub s |7\n"])
    assert isinstance(staged, c.Staged)
    assert staged.order == [0]


@pytest.mark.parametrize("line", [b" pub s |x\n", b"\tpub\t \ts\t|x\r\n", b"pub" + b" " * 500 + b"s |x\n"])
def test_publishes_that_the_leaf_declines(line: bytes) -> None:
    assert flat(feed(codec(), [line, line])) == [(b"s", b"x"), (b"s", b"x")]


# --- limits ---------------------------------------------------------------------------------------------------------


def pub_line(size: int) -> bytes:
    """A publish whose whole line has `size` bytes."""
    return b"pub s |" + b"x" * (size - 9) + b"\r\n"


@pytest.mark.parametrize("cut_size", [1, 7, 1_000, MAX_LINE_BYTES, 1 << 16])
def test_the_longest_line(cut_size: int) -> None:
    data = pub_line(MAX_LINE_BYTES) + pub_line(MAX_LINE_BYTES + 1) + b"ping\n"
    found = feed(codec(message=MAX_LINE_BYTES), cut(data, range(0, len(data), cut_size)))
    assert flat(found) == [(b"s", b"x" * (MAX_LINE_BYTES - 9)), Code.LINE, c.Ping()]


@pytest.mark.parametrize("limit", [1_024, 1_300, 5_000])
def test_the_longest_line_is_the_same_for_the_leaf(limit: int) -> None:
    for size in range(limit - 300, limit + 3):
        fed = codec(line=limit, message=1 << 20)
        expected: list[object] = [(b"s", b"x" * (size - 9))] if size <= limit else [Code.LINE]
        assert flat(feed(fed, [pub_line(size)])) == expected, size


@pytest.mark.parametrize("cut_size", [1, 100, 1 << 16])
def test_the_largest_message(cut_size: int) -> None:
    data = b"".join(b"pub s |" + b"x" * (MAX_MESSAGE_BYTES + more) + b"\n" for more in (0, 1)) + b"ping\n"
    found = feed(codec(), cut(data, range(0, len(data), cut_size)))
    assert flat(found) == [(b"s", b"x" * MAX_MESSAGE_BYTES), Code.SIZE, c.Ping()]


@pytest.mark.thorough
def test_no_message_is_larger_than_a_frame() -> None:
    """With any settings: the owner could not stamp it."""
    fed = LineCodec(1 << 30, 1 << 30)
    over = b"x" * (MAX_FRAME_BYTES - HEADER_BYTES + 1)
    for line in (b"pub s |" + over + b"\n", b" pub s |" + over + b"\n"):
        assert flat(fed.feed(line, len(line))) == [Code.SIZE]


def test_a_line_that_is_too_long_is_told_once_and_at_once() -> None:
    fed = codec(begun=True)
    assert flat(feed(fed, [b"x" * MAX_LINE_BYTES])) == [Code.LINE]
    assert flat(feed(fed, [b"x" * MAX_LINE_BYTES] * 5)) == []
    assert fed.pending_bytes == 0
    assert flat(feed(fed, [b"x\nping\n"])) == [c.Ping()]


def test_a_line_that_is_too_long_is_not_stored() -> None:
    fed = codec(line=(8 << 20) + 4_096, message=8 << 20, begun=True)
    piece = b"x" * (64 << 10)
    tracemalloc.start()
    try:
        for _ in range(1_024):  # 64 MiB
            feed(fed, [piece])
            assert fed.pending_bytes <= fed.max_line_bytes
        assert tracemalloc.get_traced_memory()[1] < 4 * fed.max_line_bytes
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_largest_line_in_small_pieces() -> None:
    """8 MiB in 64 KiB pieces, then in 4 KiB ones: the cost is that of the bytes, not of the pieces times the bytes."""
    fed = LineCodec((8 << 20) + 4_096, 8 << 20)
    payload = b"0123456789abcdef" * (512 << 10)
    data = b"pub s |" + payload + b"\r\n"
    started = time.thread_time()
    for size in (64 << 10, 4 << 10):
        found = feed(fed, [data[start : start + size] for start in range(0, len(data), size)])
        assert flat(found) == [(b"s", payload)]
        assert fed.pending_bytes == 0
    assert time.thread_time() - started < 5  # looking at all that is held with each piece would take minutes


def test_single_bytes_of_a_long_line() -> None:
    fed = LineCodec(8 << 20, 8 << 20)
    feed(fed, [b"x" * (7 << 20)])
    shared = bytearray(b"x")
    view = memoryview(shared)
    started = time.thread_time()
    for _ in range(20_000):
        assert not list(fed.feed(view, 1))
    assert fed.pending_bytes == (7 << 20) + 20_000
    assert time.thread_time() - started < 5  # 140 GB would have to be looked at otherwise


def test_many_short_bad_lines_in_one_read() -> None:
    data = b"x\n" * 20_000 + b"x" * (4 << 20)
    fed = codec(line=8 << 20, message=4 << 20, begun=True)
    started = time.thread_time()
    bad = sum(1 for command in fed.feed(data, len(data)) if isinstance(command, c.Invalid))
    assert bad == 20_000
    assert time.thread_time() - started < 5  # searching the rest of the read, 80 GB in all, would take longer


# --- the end --------------------------------------------------------------------------------------------------------


def test_eof_between_lines() -> None:
    fed = codec()
    feed(fed, [b"ping\n"])
    assert fed.feed_eof() == []


@pytest.mark.parametrize("rest", [b"pub s |half", b"p", b"\0"])
def test_eof_within_a_line(rest: bytes) -> None:
    fed = codec()
    feed(fed, [b"ping\n", rest])
    assert flat(fed.feed_eof()) == [Code.INCOMPLETE]
    assert fed.pending_bytes == 0
    assert fed.feed_eof() == []


@pytest.mark.parametrize("rest", [b" ", b"\r", b"\t \r"])
def test_eof_after_blanks_is_nothing_to_tell(rest: bytes) -> None:
    fed = codec()
    feed(fed, [rest])
    assert fed.feed_eof() == []


def test_eof_within_a_line_that_was_too_long() -> None:
    fed = codec()
    assert flat(feed(fed, [b"x" * 5_000])) == [Code.LINE]
    assert fed.feed_eof() == []


# --- telnet ---------------------------------------------------------------------------------------------------------

CTRL_C = b"\xff\xf4\xff\xfd\x06"  # IAC IP, IAC DO TIMING-MARK
NEGOTIATION = (
    b"\xff\xfb\x0a"  # WILL 10: an option whose number is an LF
    b"\xff\xfa\x18\x00a\nb|\xff\xff\xff\xf0"  # a sub-negotiation with an LF, a bar and an escaped IAC in it
    b"pub s |one \xff\xff two\r\n" + CTRL_C + b"ping\r\0\xff\xfc\x01pub s |\xff\xf9three\r\n"
)


def test_telnet_options_split_anywhere() -> None:
    expected = [(b"s", b"one \xff two"), c.Ping(), (b"s", b"three")]
    for pieces in (
        [NEGOTIATION],
        cut(NEGOTIATION, range(len(NEGOTIATION))),
        *([NEGOTIATION[:place], NEGOTIATION[place:]] for place in range(len(NEGOTIATION))),
    ):
        found = feed(codec(), pieces)
        assert flat(found) == expected
        assert replies(found) == b"\xff\xfe\x0a\xff\xfc\x06"


def test_an_interrupt_is_answered_before_the_line_ends() -> None:
    fed = codec()
    assert replies(feed(fed, [CTRL_C])) == b"\xff\xfc\x06"
    assert fed.pending_bytes == 0
    assert flat(feed(fed, [b"ping\r\n"])) == [c.Ping()]


@pytest.mark.parametrize("typed", [b"pi", b"pub s ", b" "])
def test_an_interrupt_in_the_middle_of_a_command(typed: bytes) -> None:
    for pieces in ([typed, CTRL_C, b"|\r\n"], [typed + CTRL_C, b"|\r\n"], [typed + CTRL_C + b"|\r\n"]):
        found = feed(codec(), pieces)
        assert replies(found) == b"\xff\xfc\x06"
        assert len(flat(found)) <= 1


def test_binary_payloads_are_not_telnet() -> None:
    payload = CTRL_C + b"\xff\xff\xff"
    found = feed(codec(), [b"pub s |" + payload + b"\n", b"pub s |", payload, b"\n", b"ping\n"])
    assert flat(found) == [(b"s", payload), (b"s", payload), c.Ping()]
    assert replies(found) == b""


def test_telnet_lines_have_the_same_limits() -> None:
    fed = codec(begun=True)
    assert flat(feed(fed, [CTRL_C + b"x" * 5_000, b"x" * 5_000])) == [Code.LINE]
    assert fed.pending_bytes == 0
    assert flat(feed(fed, [b"\r\nping\r\n"])) == [c.Ping()]


# --- other protocols --------------------------------------------------------------------------------------------------

POST = (
    b"POST /shutdown HTTP/1.1\r\nHost: 127.0.0.1:5050\r\nshutdown: x\r\n shutdown\r\nContent-Length: 45\r\n\r\n"
    b"shutdown\r\nslave evil.example 5050 * 0\r\npub s |x\r\n"
)
CURL_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n!\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01\x0a\x0a\x13\xba"
STARTS = [
    POST,
    b"\r\n" + POST,
    b"GET / HTTP/1.1\nshutdown\n",
    b"GET /\r\nshutdown\r\n",
    b"get shutdown HTTP/1.0\r\nshutdown\r\n",
    b"pub /x| HTTP/1.1\r\nshutdown\r\n",
    b"leave /x HTTP/1.1\r\nshutdown\r\n",
    b"Host: evil.example:5050\r\nshutdown\r\n",
    CURL_2 + b"shutdown\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 5050\r\nshutdown\r\n",
    PROXY_2 + b"\nshutdown\n",
]


@pytest.mark.parametrize("data", STARTS)
@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_another_protocol_is_refused_and_nothing_of_it_is_done(data: bytes, size: int) -> None:
    fed = codec()
    (found,) = feed(fed, [data[i : i + size] for i in range(0, len(data), size)])
    assert isinstance(found, c.Foreign)
    assert feed(fed, [b"shutdown\r\n"]) == []
    assert fed.feed_eof() == []


@pytest.mark.parametrize("line", [b"EHLO x", b"shutdown: x", b"\xff\xf6hello", b"x" * 5_000, b"ping\0" + bytes(5_000)])
@pytest.mark.parametrize("size", [1, 1_000])
def test_after_a_first_line_that_is_no_command_nothing_is_read(line: bytes, size: int) -> None:
    data = line + b"\r\nshutdown\r\n"
    found = feed(codec(), [data[i : i + size] for i in range(0, len(data), size)])
    (last,) = [command for command in found if not isinstance(command, c.Reply)]
    assert isinstance(last, c.Invalid)
    assert last.error.fatal
    assert last.error.code in (Code.COMMAND, Code.LINE)


@pytest.mark.parametrize("line", [b"pub", b"get s", b"sub s x", b"pub s |" + b"x" * 5_000, b"get / x"])
def test_a_first_command_that_is_malformed_ends_nothing(line: bytes) -> None:
    fed = codec()
    first, *others = feed(fed, [line + b"\r\nping\r\n"])
    assert isinstance(first, c.Invalid | c.Get)
    assert others == [c.Ping()]
    assert not fed.strayed


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"HOST : x", b"host:x", b"POST /x HTTP/1.1"])
def test_http_behind_a_command_is_refused_too(line: bytes) -> None:
    first, second = feed(codec(), [b"ping\r\n" + line + b"\r\nshutdown\r\n"])
    assert (first, type(second)) == (c.Ping(), c.Foreign)


def test_a_line_that_is_no_command_is_remembered() -> None:
    fed = codec(begun=True)
    feed(fed, [b"pub\r\n"])
    assert not fed.strayed
    feed(fed, [b"nonsense\r\n"])
    assert fed.strayed


def test_payloads_may_look_like_http() -> None:
    data = b"pub s |GET / HTTP/1.1\r\npub s | HTTP/1.1\r\npub s |Host: x\r\npub s| HTTP/1.1\r\n"
    sent = [(b"s", b"GET / HTTP/1.1"), (b"s", b" HTTP/1.1"), (b"s", b"Host: x"), (b"s", b" HTTP/1.1")]
    assert flat(feed(codec(), [data])) == sent
    assert flat(feed(codec(), cut(data, range(len(data))))) == sent


# --- handing over ---------------------------------------------------------------------------------------------------


TOO_LONG = b"x" * 5_000 + b"\nping\n"


BINARY = b"pub s |\xff\xfd\x06x\r\nping\n"


@pytest.mark.parametrize(
    "data",
    [SESSION, NEGOTIATION, BINARY, TOO_LONG, b"ping\n" + TOO_LONG, b"\r\nx\nping\n", b"ping\n" + CTRL_C + TOO_LONG],
)
def test_another_codec_goes_on_from_any_place(data: bytes) -> None:
    whole = flat(feed(codec(), [data]))
    for place in range(0, len(data) + 1, max(len(data) // 100, 1)):
        first, second = codec(), codec()
        found = feed(first, [data[:place]])
        second.restore_state(msgpack.unpackb(msgpack.packb(first.export_state())))
        assert second.pending_bytes == first.pending_bytes
        assert second.ack == first.ack
        assert second.strayed == first.strayed
        assert flat(found + feed(second, [data[place:]])) == whole


# --- the model ------------------------------------------------------------------------------------------------------

number = st.integers(0, 2**63 - 1)
places = st.one_of(
    st.just(c.FROM_NEW),
    st.builds(c.From, st.just("time"), number),
    st.builds(c.From, st.just("seq"), number),
)
hosts = st.sampled_from(["localhost", "10.0.0.1", "::1", "fe80::1%eth0", "a-b.example"])
old_places = places.filter(lambda place: place.kind != "new")
bare = st.sampled_from([c.Ping(), c.Help(), c.Close(), c.Workers(), c.Space(), c.Conns(), c.Shutdown(), c.Streams()])
on_streams = st.one_of(*(st.builds(kind, names) for kind in (c.Unsubscribe, c.Unmaster, c.Unslave, c.Stat, c.Streams)))
others = st.one_of(
    bare,
    on_streams,
    st.builds(c.Ack, st.booleans()),
    st.builds(c.Subscribe, names, places, wait=st.booleans(), topics=st.sampled_from([b"", b"#", b"a/+", b"% |\t"])),
    st.builds(c.Subscribe, names, st.builds(c.From, st.just("time"), number), number),
    st.builds(c.Slave, hosts, st.integers(1, 65_535), names, places),
    st.builds(c.Slave, hosts, st.integers(1, 65_535), st.just(b"a*"), places, st.just(True)),
    st.builds(c.Trim, names, old_places, spare=st.booleans()),
    st.builds(c.Master, names, st.booleans()),
    st.builds(c.Promote, names, st.integers(1, EPOCH_MAX), st.booleans()),
    st.builds(c.Promote, names, st.just(0), st.booleans()),
    st.builds(c.Fence, names, st.integers(1, EPOCH_MAX)),
)
publishes = st.tuples(names, payload_bytes)


def written(place: c.From) -> bytes:
    return {"new": b"new", "seq": b"#%d" % place.value, "time": b"%d" % place.value}[place.kind]


def arguments(command: object) -> list[bytes]:
    """The command as it stands on a line, word by word."""
    if isinstance(command, c.Close):
        return [command.word.encode()]
    word = {c.Subscribe: b"sub", c.Unsubscribe: b"unsub"}.get(type(command), type(command).__name__.lower().encode())
    args: list[bytes] = [word]
    for value in [getattr(command, field) for field in getattr(type(command), "__slots__", ())]:
        if isinstance(value, c.From):
            args.append(written(value))
        elif isinstance(value, bool):
            args.append(b"on" if value else b"off")
        elif isinstance(value, int):
            args.append(b"%d" % value)
        else:
            args.append(value if isinstance(value, bytes) else value.encode())
    if isinstance(command, c.Subscribe):
        args[3:] = ([b"%d" % command.skip] if command.skip else []) + ([b"wait"] if command.wait else [])
        args += [b"topics", escaped(command.topics)] if command.topics else []
    if isinstance(command, c.Slave):
        args[5:] = [b"on-demand"] if command.on_demand else []
    if isinstance(command, c.Trim):
        args[-1:] = [b"spare"] if command.spare else []
    if isinstance(command, c.Master | c.Promote):
        args[-1:] = [b"force"] if command.force else []
    if isinstance(command, c.Promote) and not command.epoch:
        del args[2]
    return args


def as_line(command: object, blank: bytes, end: bytes, upper: bool) -> bytes:
    if isinstance(command, tuple):
        name, payload = command
        return b"".join((b"pub", blank, name, blank, b"|", payload, b"\r\n"))
    word, *args = arguments(command)
    return blank.join([word.upper() if upper else word, *args]).rstrip() + end


line_style = st.tuples(st.sampled_from([b" ", b" ", b"\t", b"   "]), st.sampled_from([b"\r\n", b"\n"]), st.booleans())


@given(st.lists(st.tuples(st.one_of(publishes, publishes, others), line_style), max_size=12), cuts)
def test_commands_to_bytes_in_any_pieces_to_the_same_commands(
    rows: list[tuple[object, tuple[bytes, bytes, bool]]], places: list[int]
) -> None:
    data = b"".join(as_line(command, *style) for command, style in rows)
    fed = codec(ack=True)
    expected = [command for command, _ in rows]
    found = feed(fed, cut(data, places))
    assert sorted_runs(flat(found)) == sorted_runs(expected)
    assert fed.pending_bytes == 0
    assert fed.feed_eof() == []


def sorted_runs(commands: list[object]) -> list[object]:
    """Runs of messages, stream by stream: without `ack on` the order between streams is unknown."""
    result: list[object] = []
    run: list[tuple[bytes, bytes]] = []
    for command in [*commands, None]:
        if isinstance(command, tuple):
            run.append(command)
            continue
        result += [[each for each in run if each[0] == name] for name in sorted({name for name, _ in run})]
        run = []
        result.append(command)
    return result


@given(st.lists(publishes, max_size=30), cuts)
def test_the_order_of_messages_is_known_when_it_is_wanted(sent: list[tuple[bytes, bytes]], places: list[int]) -> None:
    data = b"".join(as_line(each, b" ", b"\r\n", False) for each in sent)
    assert flat(feed(codec(ack=True), cut(data, places))) == sent


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"\r")), cuts)
def test_payloads_are_not_touched(payload: bytes, places: list[int]) -> None:
    data = b"pub s |" + payload + b"\r\n"
    assert flat(feed(codec(), cut(data, places))) == [(b"s", payload)]


garbage = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from([b"\n", b"\r\n", b"\xff", b"\xff\xfd", b"\xff\xfa", b"\xff\xf0"]),
        st.sampled_from([b"|", b"\0", b" ", b"#", b"$"]),
        st.sampled_from([b"pub s |", b"sub s ", b"ack ", b"slave h 1 s ", b"trim s #", b"streams ", b"9" * 5_000]),
        st.sampled_from([b"x" * 300, b"pub s |" + b"y" * 3_000]),
    ),
    max_size=25,
).map(b"".join)


@given(garbage, cuts)
def test_garbage_gives_commands_or_clean_errors_and_holds_little(data: bytes, places: list[int]) -> None:
    fed = codec(begun=True)
    for piece in cut(data, places):
        for command in feed(fed, [piece]):
            assert isinstance(command, c.Command)
            if isinstance(command, c.Invalid):
                assert not command.error.fatal
                assert command.error.text.isprintable()
            elif isinstance(command, c.Staged):
                messages(command)
        assert fed.pending_bytes <= MAX_LINE_BYTES
    for command in fed.feed_eof():
        assert isinstance(command, c.Invalid)
        assert command.error.code is Code.INCOMPLETE


@given(garbage.filter(lambda data: len(data) < MAX_LINE_BYTES), cuts)
@example(b"\xff\0 no command\n\xff\xfb\0", [14])  # the first line ends the session: no option after it is answered
@example(b"\xff\xfb\0no command\n", [3])
def test_garbage_means_the_same_however_it_is_cut(data: bytes, places: list[int]) -> None:
    whole, pieces = codec(ack=True), codec(ack=True)
    expected, found = feed(whole, [data]), feed(pieces, cut(data, places))
    assert flat(found) == flat(expected)
    assert replies(found) == replies(expected)
    assert flat(pieces.feed_eof()) == flat(whole.feed_eof())
