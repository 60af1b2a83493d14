"""The commands of the line protocol: their forms, and how a line becomes one. One table row a command.

This is the slow path: publishes normally never come here (`line_cy.stage`), only those it declined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from tailrace.protocol import commands as c
from tailrace.protocol.address import PORT_MAX, host_valid, split_address
from tailrace.protocol.consuming import DELAY_MAX_MS, MESSAGES_MAX, OWN_DELAY_MS, REASON_BYTES_MAX, WAIT_MAX_MS
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.names import (
    ALL_STREAMS,
    StreamGroup,
    consumer_name,
    is_pattern,
    readable_name,
    shown,
    stream_group,
    stream_name,
    stream_pattern,
)
from tailrace.protocol.places import NUMBER_MAX as NUMBER_MAX
from tailrace.protocol.replication import PROMISE_MS_MAX
from tailrace.protocol.topics import (
    name_of_word,
    published_name,
    read_name,
    topic_filter,
    topic_metadata,
    topic_of_word,
    unescaped,
)
from tailrace.shard.epochs import EPOCH_MAX
from tailrace.shard.frame import pack_frame
from tailrace.shard.names import NODE_BYTES_MAX, name_bytes_valid

_FINISH_FORM = "ack STREAM NAME SEQ [LAST]"
_MARK_BYTES_MAX = 64
_HEAD_BYTES_MAX = 4_096
_CLIENT_ID_BYTES_MAX = 1_024
_ISR_MAX = 60
_PLACE_DIGITS_MAX = 10
_UNTIL_DIGITS_MAX = 12
_NUMBER_DIGITS_MAX = len(str(NUMBER_MAX))
_BLANKS = b" \t"
_WORD = re.compile(rb"[ \t]*([^ \t|]*)[ \t]*")


class Verb(NamedTuple):
    """One command: `form` and `meaning` are its texts in `help`, `err usage` and the documentation."""

    form: str
    meaning: str
    admin: bool
    parse: Callable[[Verb, bytes, int], c.Command]

    def usage(self) -> PeerError:
        return PeerError(Code.USAGE, f"write: {self.form}")


def parse_line(line: bytes, max_message_bytes: int) -> c.Command:
    """The command of one line, given without its line end. A bad line gives Invalid; nothing is raised."""
    try:
        return _parse(line, max_message_bytes)
    except PeerError as error:
        return c.Invalid(error.with_traceback(None))


def begins_command(line: bytes) -> bool:
    """Returns whether the first word of a line, possibly incomplete, is that of a command."""
    match = _WORD.match(line)
    return match is not None and verb_of(match[1]) is not None


def is_blank(line: bytes | bytearray) -> bool:
    """Returns whether the line has no command at all; such lines are ignored."""
    return not line.strip(b" \t\r\n")


def place(data: bytes) -> c.From:
    """FROM: `0`, a time in µs, `#SEQ` or `new`. Raises PeerError with `from`."""
    if data.lower() == b"new":
        return c.FROM_NEW
    if data[:1] == b"#":
        return c.From("seq", _number(data[1:], Code.FROM, f"{shown(data)} is not a position: a seq must follow #"))
    text = f"{shown(data)} is not a position in a stream: write 0, a time in microseconds, #SEQ or new"
    return c.From("time", _number(data, Code.FROM, text))


def reading_place(data: bytes) -> c.From:
    """FROM of a reader: as `place`, or `-COUNT`, counted from the end."""
    if data[:1] != b"-":
        return place(data)
    return c.From("last", _number(data[1:], Code.FROM, f"{shown(data)} is not a position: a number must follow -"))


def _number(data: bytes, code: Code, text: str) -> int:
    if not data.isdigit():
        raise PeerError(code, text)
    digits = data.lstrip(b"0") or b"0"
    if len(digits) > _NUMBER_DIGITS_MAX or int(digits) > NUMBER_MAX:
        raise PeerError(code, f"{shown(data)} is too large: at most {NUMBER_MAX}")
    return int(digits)


def _parse(line: bytes, max_message_bytes: int) -> c.Command:
    match = _WORD.match(line)
    assert match is not None  # it matches the empty line too
    word = match[1]
    verb = verb_of(word)
    if verb is None:
        raise PeerError(Code.COMMAND, f"no command {shown(word)}; help lists the commands")
    return verb.parse(verb, line[match.end() :], max_message_bytes)


def _args(verb: Verb, rest: bytes, low: int, high: int) -> list[bytes]:
    """The blank-separated arguments, `low` to `high` of them. Raises PeerError with `usage`."""
    args = [arg for arg in rest.replace(b"\t", b" ").split(b" ", 2 * high + 2) if arg] if len(rest) <= 4096 else []
    if not low <= len(args) <= high or len(rest) > 4096:
        raise verb.usage()
    return args


def _named(word: bytes, of_stream: Callable[[bytes], bytes] = stream_name) -> bytes:
    """The name of a stream, a topic or a filter that this word of a reader's command stands for."""
    return read_name(name_of_word(word), of_stream)


def _shutdown(verb: Verb, rest: bytes, _max: int) -> c.Command:
    """The name may be missing: the answer has it then."""
    return c.Shutdown(b"".join(_args(verb, rest, 0, 1)))


def _pub(verb: Verb, rest: bytes, max_message_bytes: int) -> c.Command:
    head, bar, payload = rest.partition(b"|")
    words = [word for word in head[:_HEAD_BYTES_MAX].replace(b"\t", b" ").split(b" ") if word]
    if not words or not bar:
        raise verb.usage()
    name, *clause = words
    if len(head) > _HEAD_BYTES_MAX or (clause and (len(clause) != 2 or clause[0].lower() != b"topic")):
        text = f"{shown(head.rstrip(_BLANKS))} is not a stream name: it has white space before the |"
        raise PeerError(Code.NAME, f"{text}; with a topic write: {verb.form}")
    name = published_name(name_of_word(name))
    metadata = topic_metadata(topic_of_word(clause[1])) if clause else b""
    if len(payload) + len(metadata) > max_message_bytes:
        size = len(payload) + len(metadata)
        text = f"the message to {shown(name)} has {size} bytes; at most {max_message_bytes} are allowed"
        raise PeerError(Code.SIZE, text)
    groups = [(name, 1, bytearray(pack_frame(payload, metadata=metadata)))]
    return c.Staged(groups, [0], is_topic=not name_bytes_valid(name))


def _auth(verb: Verb, rest: bytes, _max: int) -> c.Command:
    user, secret = _args(verb, rest, 2, 2)
    try:
        user.decode(), secret.decode()
    except UnicodeDecodeError:
        raise verb.usage() from None
    return c.Auth(user, secret)


def _sub(verb: Verb, rest: bytes, _max: int) -> c.Command:
    args = _args(verb, rest, 2, 6)
    topics = b""
    if len(args) > 3 and args[-2].lower() == b"topics":
        topics = topic_filter(unescaped(args.pop()))
        del args[-1]
    wait = args[-1].lower() == b"wait" and len(args) > 2
    if len(args) - wait > 3:
        raise verb.usage()
    name, start = _named(args[0], readable_name), reading_place(args[1])
    if topics and is_pattern(name):
        raise PeerError(Code.USAGE, "a filter of topics is for one stream, not for a pattern of streams")
    if len(args) - wait == 2:
        return c.Subscribe(name, start, wait=wait, topics=topics)
    if start.kind != "time":
        raise PeerError(Code.USAGE, f"SKIP counts messages at a time, so FROM must be one; write: {verb.form}")
    skip = _number(args[2], Code.USAGE, f"SKIP is a number; write: {verb.form}")
    return c.Subscribe(name, start, skip, wait, topics)


def _last(verb: Verb, rest: bytes, _max: int) -> c.Command:
    name, *words = _args(verb, rest, 1, 4)
    if not words:
        return c.ReadLast(_named(name))
    if len(words) != 3 or words[0].lower() != b"after":
        raise verb.usage()
    return c.ReadLast(_named(name), stream_name(words[1]), topic_of_word(words[2]))


def _ack(verb: Verb, rest: bytes, _max: int) -> c.Command:
    """The number of words selects the form."""
    usage = PeerError(Code.USAGE, f"write: {verb.form}, or: {_FINISH_FORM}")
    try:
        words = _args(verb, rest, 1, 4)
    except PeerError:
        raise usage from None
    if len(words) > 2:
        return _finish(*words)
    on = {b"on": True, b"off": False}.get(words[0].lower())
    if on is None or len(words) > 1:
        raise usage
    return c.Ack(on)


def _finish(stream: bytes, name: bytes, *seqs: bytes) -> c.Command:
    first, last = [_seq(seq, _FINISH_FORM) for seq in (seqs[0], seqs[-1])]
    if first > last:
        raise PeerError(Code.USAGE, f"SEQ {first} comes after LAST {last}; write: {_FINISH_FORM}")
    return c.Finish(_named(stream), consumer_name(name), first, last)


def _nack(verb: Verb, rest: bytes, _max: int) -> c.Command:
    stream, name, seq, *words = _args(verb, rest, 3, 6)
    delay_ms = OWN_DELAY_MS
    if len(words) > 1 and words[-2].lower() == b"after":
        delay_ms = _number(words[-1], Code.USAGE, f"MS is a number up to {DELAY_MAX_MS}; write: {verb.form}")
        words = words[:-2]
    if len(words) > 1 or delay_ms > DELAY_MAX_MS:
        raise verb.usage()
    reason = b"".join(words).decode("utf-8", "replace")
    if len(reason.encode()) > REASON_BYTES_MAX:
        raise PeerError(Code.USAGE, f"REASON has at most {REASON_BYTES_MAX} bytes; write: {verb.form}")
    return c.Nack(_named(stream), consumer_name(name), _seq(seq, verb.form), reason, delay_ms)


def _get(verb: Verb, rest: bytes, _max: int) -> c.Command:
    stream, name, *numbers = _args(verb, rest, 2, 4)
    bounds = (("WAIT_MS", WAIT_MAX_MS), ("MAX", MESSAGES_MAX))
    for data, (what, high) in zip(numbers, bounds, strict=False):
        text = f"{what} is a number up to {high}; write: {verb.form}"
        if _number(data, Code.USAGE, text) > high:
            raise PeerError(Code.USAGE, text)
    return c.Get(_named(stream), consumer_name(name), *map(int, numbers))


def _seq(data: bytes, form: str) -> int:
    return _number(data, Code.USAGE, f"{shown(data)} is not a seq; write: {form}")


def _consumer_at(kind: Callable[[bytes, bytes, c.From], c.Command]) -> Callable[[Verb, bytes, int], c.Command]:
    def parse(verb: Verb, rest: bytes, _max: int) -> c.Command:
        stream, name, start = _args(verb, rest, 3, 3)
        return kind(_named(stream), consumer_name(name), reading_place(start))

    return parse


def _consume(verb: Verb, rest: bytes, _max: int) -> c.Command:
    stream, name, start, *clause = _args(verb, rest, 3, 5)
    if clause and (len(clause) != 2 or clause[0].lower() != b"topics"):
        raise verb.usage()
    topics = topic_filter(unescaped(clause[1])) if clause else b""
    return c.Consume(_named(stream), consumer_name(name), reading_place(start), topics)


def _consumer_only(kind: Callable[[bytes, bytes], c.Command]) -> Callable[[Verb, bytes, int], c.Command]:
    def parse(verb: Verb, rest: bytes, _max: int) -> c.Command:
        stream, name = _args(verb, rest, 2, 2)
        return kind(_named(stream), consumer_name(name))

    return parse


def _slave(verb: Verb, rest: bytes, _max: int) -> c.Command:
    host, port, name, start, *option = _args(verb, rest, 4, 5)
    if option and (option[0].lower() != b"on-demand" or not (name.endswith(b"*") or stream_group(name))):
        raise PeerError(Code.USAGE, f"on-demand is for a pattern of streams; write: {verb.form}")
    if not host_valid(host.decode("latin-1")):
        raise PeerError(Code.USAGE, f"{shown(host)} is not a host; write: {verb.form}")
    port_number = _number(port, Code.USAGE, f"PORT is a number; write: {verb.form}")
    if not 0 < port_number <= PORT_MAX:
        raise PeerError(Code.USAGE, f"PORT is 1 to {PORT_MAX}; write: {verb.form}")
    return c.Slave(host.decode(), port_number, stream_pattern(name), place(start), bool(option))


def _epoch(data: bytes, form: str) -> int:
    epoch = _number(data, Code.USAGE, f"{shown(data)} is not an EPOCH; write: {form}")
    if not 0 < epoch <= EPOCH_MAX:
        raise PeerError(Code.USAGE, f"EPOCH is 1 to {EPOCH_MAX}; write: {form}")
    return epoch


def _without_force(words: list[bytes]) -> tuple[list[bytes], bool]:
    force = bool(words) and words[-1].lower() == b"force"
    return words[:-1] if force else words, force


def _promote(verb: Verb, rest: bytes, _max: int) -> c.Command:
    (name, *words), force = _without_force(_args(verb, rest, 1, 3))
    stream = stream_pattern(name)
    if len(words) > 1:
        raise verb.usage()
    return c.Promote(stream, _epoch(words[0], verb.form) if words else 0, force)


def _master(verb: Verb, rest: bytes, _max: int) -> c.Command:
    name, *words = _args(verb, rest, 1, 2)
    words, force = _without_force(words)
    if words:
        raise verb.usage()
    return c.Master(stream_name(name), force)


def _fence(verb: Verb, rest: bytes, _max: int) -> c.Command:
    name, epoch = _args(verb, rest, 2, 2)
    return c.Fence(stream_name(name), _epoch(epoch, verb.form))


def _group(name: bytes, form: str) -> StreamGroup:
    group = ALL_STREAMS if name == b"*" else stream_group(name)
    if group is None:
        raise PeerError(Code.USAGE, f"GROUP is * for all streams, or *%NUMBER/GROUPS; write: {form}")
    return group


def _lease(verb: Verb, rest: bytes, _max: int) -> c.Command:
    group, *given = _args(verb, rest, 1, 3)
    streams = _group(group, verb.form)
    if not given:
        return c.ShowLease(streams)
    if len(given) == 1:
        raise verb.usage()
    term, until = given
    if not until.isdigit() or len(until) > _UNTIL_DIGITS_MAX:
        raise PeerError(Code.USAGE, f"UNTIL_MS is a time of CLOCK_BOOTTIME in milliseconds; write: {verb.form}")
    return c.GrantLease(_epoch(term, verb.form), int(until), streams)


def _promises(verb: Verb, rest: bytes, _max: int) -> c.Command:
    group, term, length, listed = _args(verb, rest, 4, 4)
    streams = _group(group, verb.form)
    if not length.isdigit() or len(length) > 5 or not 0 < int(length) <= PROMISE_MS_MAX:
        raise PeerError(Code.USAGE, f"MS is 1 to {PROMISE_MS_MAX}; write: {verb.form}")
    addresses = listed.decode("utf-8", "replace").split(",")
    try:
        nodes = tuple([split_address(each) for each in addresses])
    except ValueError as error:
        raise PeerError(Code.USAGE, f"{error}; write: {verb.form}") from None
    if len(nodes) > _ISR_MAX:
        raise PeerError(Code.USAGE, f"ADDRESSES are those of up to {_ISR_MAX} nodes; write: {verb.form}")
    return c.RequestPromises(_epoch(term, verb.form), int(length), nodes, streams)


def _isr(verb: Verb, rest: bytes, _max: int) -> c.Command:
    group, *ids = _args(verb, rest, 1, 2)
    streams = _group(group, verb.form)
    if not ids:
        return c.InSyncNodes((), streams)
    nodes = ids[0].split(b",")
    if len(nodes) > _ISR_MAX or not all(node.isalnum() and len(node) <= NODE_BYTES_MAX for node in nodes):
        raise PeerError(Code.USAGE, f"NODES are ids of up to {_ISR_MAX} nodes with commas between; write: {verb.form}")
    return c.InSyncNodes(tuple([node.decode() for node in nodes]), streams)


def _trim(verb: Verb, rest: bytes, _max: int) -> c.Command:
    name, start, *more = _args(verb, rest, 2, 3)
    stream, where = stream_name(name), place(start)
    if where.kind == "new":
        raise PeerError(Code.FROM, "trim takes a time in microseconds or #SEQ; messages before it are dropped")
    if more and more[0].lower() != b"spare":
        raise PeerError(Code.USAGE, f"{shown(more[0])} is not an option of trim; write: {verb.form}")
    return c.Trim(stream, where, spare=bool(more))


def _streams(verb: Verb, rest: bytes, _max: int) -> c.Command:
    args = _args(verb, rest, 0, 1)
    if args and not name_bytes_valid(args[0]):
        raise PeerError(Code.NAME, f"{shown(args[0])} cannot begin a stream name")
    return c.Streams(*args)


def _pull(verb: Verb, rest: bytes, _max: int) -> c.Command:
    args = _args(verb, rest, 0, 1)
    if args and (not args[0].isdigit() or len(args[0]) > _PLACE_DIGITS_MAX):
        raise verb.usage()
    return c.Pull(*[int(each) for each in args])


def _client_ids(kind: Callable[..., c.Command], least: int) -> Callable[[Verb, bytes, int], c.Command]:
    def parse(verb: Verb, rest: bytes, _max: int) -> c.Command:
        args = [unescaped(arg) for arg in _args(verb, rest, least, 1)]
        if any(len(arg) > _CLIENT_ID_BYTES_MAX for arg in args):
            raise PeerError(Code.USAGE, f"a client identifier has at most {_CLIENT_ID_BYTES_MAX} bytes")
        return kind(*args)

    return parse


def _grown(verb: Verb, rest: bytes, _max: int) -> c.Command:
    args = _args(verb, rest, 0, 1)
    if args and (len(args[0]) > _MARK_BYTES_MAX or not args[0].isascii()):
        raise PeerError(Code.USAGE, f"{shown(args[0])} is no mark of an earlier answer")
    return c.GrownStreams(*args)


def _stream_only(
    kind: Callable[[bytes], c.Command], checked: Callable[[bytes], bytes] = stream_name
) -> Callable[[Verb, bytes, int], c.Command]:
    def parse(verb: Verb, rest: bytes, _max: int) -> c.Command:
        return kind(checked(_args(verb, rest, 1, 1)[0]))

    return parse


def _streams_like(kind: Callable[[bytes], c.Command]) -> Callable[[Verb, bytes, int], c.Command]:
    def parse(verb: Verb, rest: bytes, _max: int) -> c.Command:
        return kind(stream_pattern(_args(verb, rest, 1, 1)[0]))

    return parse


def _help(verb: Verb, rest: bytes, _max: int) -> c.Command:
    words = _args(verb, rest, 0, 1)
    if words and verb_of(words[0]) is None:
        raise PeerError(Code.USAGE, f"no command {shown(words[0])}; help lists the commands")
    return c.Help(*[word.lower() for word in words])


def _bare(command: c.Command) -> Callable[[Verb, bytes, int], c.Command]:
    def parse(verb: Verb, rest: bytes, _max: int) -> c.Command:
        _args(verb, rest, 0, 0)
        return command

    return parse


_ROWS = (
    Verb(
        "pub STREAM [topic TOPIC] |payload",
        "publish everything after the bar; no answer unless it fails; STREAM may be a topic, such as sensors/7/temp in "
        "the stream sensors; topic: one of any name in this stream",
        False,
        _pub,
    ),
    Verb("ack on|off", "whether each pub is answered: ok pub STREAM SEQ", False, _ack),
    Verb(
        "sub STREAM FROM [SKIP] [wait] [topics FILTER]",
        "messages from FROM on: 0 (all), a time in us, #SEQ, -COUNT or new; wait: also if the stream is made later; "
        "topics: only those whose topic matches; STREAM may be a pattern, such as PREFIX*, a topic, or a filter of "
        "topics, such as sensors/+/temp",
        False,
        _sub,
    ),
    Verb(
        "unsub STREAM",
        "no more messages of the stream, or of the pattern",
        False,
        _stream_only(c.Unsubscribe, partial(_named, of_stream=readable_name)),
    ),
    Verb(
        "last STREAM [after STREAM TOPIC]",
        "the last value of each topic; STREAM may be a topic, a filter or a pattern; after: the place where an answer "
        "has ended",
        False,
        _last,
    ),
    Verb(
        "consume STREAM NAME FROM [topics FILTER]",
        "a durable consumer NAME, which begins at FROM; topics: only messages whose topic the filter matches",
        False,
        _consume,
    ),
    Verb("get STREAM NAME [WAIT_MS [MAX]]", "its next MAX (1) messages, until they are acked", False, _get),
    Verb(_FINISH_FORM, "the consumer has finished these messages", False, _ack),
    Verb("nack STREAM NAME SEQ [REASON] [after MS]", "this message has failed: deliver it again later", False, _nack),
    Verb("leave STREAM NAME", "return the messages in flight at this connection", False, _consumer_only(c.Leave)),
    Verb("reset STREAM NAME FROM", "continue the consumer at FROM", False, _consumer_at(c.Reset)),
    Verb("unconsume STREAM NAME", "end the consumer", False, _consumer_only(c.Unconsume)),
    Verb("consumers STREAM", "the stream's consumers", False, _stream_only(c.Consumers, _named)),
    Verb("ping", "answers ok pong", False, _bare(c.Ping())),
    Verb("auth USER TOKEN", "log in with a token or a password; only over TLS or from this machine", False, _auth),
    Verb("help [COMMAND]", "this list, or one command and its words", False, _help),
    Verb("quit", "end this connection; exit, bye and close do the same", False, _bare(c.Close())),
    Verb("master STREAM [force]", "this node takes the stream's messages; makes it if need be", True, _master),
    Verb("unmaster STREAM", "the stream takes no more messages here", True, _streams_like(c.Unmaster)),
    Verb(
        "slave HOST PORT STREAM FROM [on-demand]",
        "follow the stream of another node; * or PREFIX* for many; on-demand: only streams that are read here",
        True,
        _slave,
    ),
    Verb("unslave STREAM", "stop following; the stream takes no more messages here", True, _streams_like(c.Unslave)),
    Verb("promote STREAM [EPOCH] [force]", "make this slave the master; force: if others have more", True, _promote),
    Verb("fence STREAM EPOCH", "acknowledge nothing of the stream in an earlier term", True, _fence),
    Verb("lease GROUP [EPOCH UNTIL_MS]", "take and acknowledge messages in this term, until then", True, _lease),
    Verb("promises GROUP EPOCH MS ADDRESSES", "ask nodes to lead in no later term for this time", True, _promises),
    Verb("isr GROUP [NODES]", "the in-sync replicas; NODES: these must hold messages", True, _isr),
    Verb("groups", "the lease, promise and in-sync replicas of each group", True, _bare(c.ShowGroups())),
    Verb(
        "trim STREAM FROM [spare]",
        "drop messages before FROM (time in us or #SEQ); spare: messages that consumers need",
        True,
        _trim,
    ),
    Verb("delete STREAM", "the stream goes, with its consumers and dead letters", True, _stream_only(c.Delete)),
    Verb("streams [PREFIX]", "the node's streams", True, _streams),
    Verb("grown [MARK]", "the streams that have grown since MARK, which an earlier answer has", True, _grown),
    Verb("stat STREAM", "one stream in numbers", True, _stream_only(c.Stat, readable_name)),
    Verb("workers", "the node's worker processes", True, _bare(c.Workers())),
    Verb("space", "the node's disk space and its bounds", True, _bare(c.Space())),
    Verb("conns", "the node's connections", True, _bare(c.Conns())),
    Verb("pull [PLACE]", "subscriptions by UDP, and those of other nodes: fastpuss's PULL and PUSH", True, _pull),
    Verb("sessions [CLIENT]", "durable MQTT sessions, those behind CLIENT", True, _client_ids(c.Sessions, 0)),
    Verb("forget CLIENT", "remove the durable MQTT session of CLIENT", True, _client_ids(c.ForgetSession, 1)),
    Verb("shutdown NODE", "stop the node of this name", True, _shutdown),
)

WORDS: Final[Mapping[str, str]] = {
    "STREAM": "the name of a stream: 1 to 200 bytes of UTF-8 without white space, control characters or |",
    "FROM": "0 (all), a time in microseconds since 1970, #SEQ, -COUNT (the last ones) or new",
    "SKIP": "number of messages at exactly the time FROM that are left out",
    "TOPIC": "the topic of the message: a name with levels, such as sensors/7/temp",
    "FILTER": "a topic in which a level may be +, for any one level, and the last #, for any further ones",
    "NAME": "the name of a durable consumer",
    "SEQ": "the number of a message in its stream",
    "LAST": "the seq of the last of several messages",
    "WAIT_MS": f"milliseconds to wait for messages, at most {WAIT_MAX_MS}; default 0",
    "MAX": f"number of messages, at most {MESSAGES_MAX}; default 1",
    "REASON": "a word",
    "PLACE": "the number at the head of an earlier answer",
    "MARK": "the value of mark in an earlier answer of this node",
    "CLIENT": "a client identifier of MQTT; bytes that a line cannot have are %XX, and % is %25",
    "PREFIX": "how the names begin",
    "EPOCH": "the number of a master's term",
    "GROUP": "* for all streams of the node; *%3/16: those whose upper half of the CRC-32 of the name is 3 modulo 16",
    "UNTIL_MS": "milliseconds of the machine's CLOCK_BOOTTIME; 0 ends the lease",
    "MS": "milliseconds",
    "ADDRESSES": "HOST:PORT of each node, with commas between",
    "NODES": "ids of nodes, the master's too, with commas between",
    "NODE": "the name of the node, which the answer has if it is missing",
    "COMMAND": "the first word of a command",
}
"""What stands in the forms of commands for something else."""

VERBS: Final[Mapping[bytes, Verb]] = {
    (row.form if row.form == _FINISH_FORM else row.form.split()[0]).encode(): row for row in _ROWS
}
"""Every command by its word in lower case, in the order `help` shows them; a second one of a word by its whole form."""

_BYNAMES: Final[Mapping[bytes, Verb]] = {
    word.encode(): Verb(word, "end this connection", False, _bare(c.Close(word))) for word in ("exit", "bye", "close")
}
"""Other words for a command, which `help` does not show in lines of their own."""


def verb_of(word: bytes) -> Verb | None:
    """Returns the command of a word in any case, or None for an unknown word."""
    lower = word.lower()
    return VERBS.get(lower) or _BYNAMES.get(lower)
