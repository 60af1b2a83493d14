"""Lines as commands: every form, and the error code of every invalid one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import commands as c
from tailrace.protocol.errors import Code
from tailrace.protocol.grammar import NUMBER_MAX, VERBS, is_blank, parse_line, verb_of
from tailrace.protocol.names import StreamGroup
from tests.protocol.lines import messages

MAX = 100


def parsed(line: bytes) -> object:
    """The command; for a bad line its code, for a publish its messages."""
    command = parse_line(line, MAX)
    if isinstance(command, c.Invalid):
        return command.error.code
    return messages(command) if isinstance(command, c.Staged) else command


GOOD: list[tuple[bytes, object]] = [
    (b"pub s |", [(b"s", b"")]),
    (b"pub s |hello|\r\xff\0", [(b"s", b"hello|\r\xff\0")]),
    (b"  PUB\t25\t|" + b"x" * MAX, [(b"25", b"x" * MAX)]),
    (b"pub s| x ", [(b"s", b" x ")]),
    (b"ack on", c.Ack(True)),
    (b"ACK OFF ", c.Ack(False)),
    (b"sub s 0", c.Subscribe(b"s", c.From("time", 0))),
    (b"Sub 25 12345", c.Subscribe(b"25", c.From("time", 12_345))),
    (b"sub s 1784000000000000 2", c.Subscribe(b"s", c.From("time", 1_784_000_000_000_000), 2)),
    (b"sub s 0 topics sensors/+/%2541%20", c.Subscribe(b"s", c.From("time", 0), topics=b"sensors/+/%41 ")),
    (b"sub s 5 2 wait Topics #", c.Subscribe(b"s", c.From("time", 5), 2, True, b"#")),
    (b"sub s #7", c.Subscribe(b"s", c.From("seq", 7))),
    (b"sub s new", c.Subscribe(b"s", c.FROM_NEW)),
    (b"sub $cursor/s new", c.Subscribe(b"$cursor/s", c.FROM_NEW)),
    (b"last s", c.ReadLast(b"s")),
    (b"LAST a/+/b", c.ReadLast(b"a/+/b")),
    (b"last a/# after s a/%20b", c.ReadLast(b"a/#", b"s", b"a/ b")),
    (b"unsub $cursor/s", c.Unsubscribe(b"$cursor/s")),
    (b"stat $cursor/s", c.Stat(b"$cursor/s")),
    (b"sub s NEW", c.Subscribe(b"s", c.FROM_NEW)),
    (b"sub s %d" % NUMBER_MAX, c.Subscribe(b"s", c.From("time", NUMBER_MAX))),
    (b"sub s 00000000000000000000007", c.Subscribe(b"s", c.From("time", 7))),
    ("sub é 0".encode(), c.Subscribe("é".encode(), c.From("time", 0))),
    (b"unsub s", c.Unsubscribe(b"s")),
    (b"ping", c.Ping()),
    (b"\t Ping \t", c.Ping()),
    (b"help", c.Help()),
    (b"help Sub", c.Help(b"sub")),
    (b"quit", c.Close()),
    (b"EXIT", c.Close("exit")),
    (b"bye", c.Close("bye")),
    (b"close", c.Close("close")),
    (b"master 0", c.Master(b"0")),
    (b"unmaster s", c.Unmaster(b"s")),
    (b"unmaster log.*", c.Unmaster(b"log.*")),
    (b"slave 127.0.0.1 5050 0 0", c.Slave("127.0.0.1", 5050, b"0", c.From("time", 0))),
    (b"slave ::1 1 s new", c.Slave("::1", 1, b"s", c.FROM_NEW)),
    (b"slave ::1 1 * #7", c.Slave("::1", 1, b"*", c.From("seq", 7))),
    (b"slave h 1 log.* 0", c.Slave("h", 1, b"log.*", c.From("time", 0))),
    (b"slave h 1 a*b 0", c.Slave("h", 1, b"a*b", c.From("time", 0))),
    (b"unslave s", c.Unslave(b"s")),
    (b"unslave " + b"n" * 200 + b"*", c.Unslave(b"n" * 200 + b"*")),
    (b"promote s", c.Promote(b"s")),
    (b"promote *", c.Promote(b"*")),
    (b"promote s force", c.Promote(b"s", 0, force=True)),
    (b"promote s 7", c.Promote(b"s", 7)),
    (b"promote s 7 FORCE", c.Promote(b"s", 7, force=True)),
    (b"promote a* force", c.Promote(b"a*", 0, force=True)),
    (b"promote * 7 force", c.Promote(b"*", 7, force=True)),
    (b"lease * 7 123456", c.GrantLease(7, 123_456)),
    (b"lease *", c.ShowLease()),
    (b"lease *%3/16 7 123456", c.GrantLease(7, 123_456, StreamGroup(3, 16))),
    (b"lease *%0/1", c.ShowLease()),
    (b"isr *%3/16 0a", c.InSyncNodes(("0a",), StreamGroup(3, 16))),
    (b"promises *%3/16 7 40 h:1", c.RequestPromises(7, 40, (("h", 1),), StreamGroup(3, 16))),
    (b"groups", c.ShowGroups()),
    (b"slave h 1 *%3/16 0", c.Slave("h", 1, b"*%3/16", c.From("time", 0))),
    (b"slave h 1 *%3/16 0 On-Demand", c.Slave("h", 1, b"*%3/16", c.From("time", 0), on_demand=True)),
    (b"slave h 1 a* #7 on-demand", c.Slave("h", 1, b"a*", c.From("seq", 7), on_demand=True)),
    (b"promote *%0/1 7 force", c.Promote(b"*", 7, force=True)),
    (b"promises * 7 4000 10.0.0.2:5050,[::1]:6", c.RequestPromises(7, 4_000, (("10.0.0.2", 5050), ("::1", 6)))),
    (b"isr *", c.InSyncNodes()),
    (b"isr * 0a,1b", c.InSyncNodes(("0a", "1b"))),
    (b"master s Force", c.Master(b"s", force=True)),
    (b"fence s 4294967295", c.Fence(b"s", 2**32 - 1)),
    (b"master a*", c.Master(b"a*")),
    (b"master force", c.Master(b"force")),
    (b"delete s", c.Delete(b"s")),
    (b"trim s 5", c.Trim(b"s", c.From("time", 5))),
    (b"trim s #5", c.Trim(b"s", c.From("seq", 5))),
    (b"trim s #5 Spare", c.Trim(b"s", c.From("seq", 5), spare=True)),
    (b"consume s n 0", c.Consume(b"s", b"n", c.From("time", 0))),
    (b"consume s $n new", c.Consume(b"s", b"$n", c.FROM_NEW)),
    (b"get s n", c.Get(b"s", b"n", 0, 1)),
    (b"get s n 60000 10000", c.Get(b"s", b"n", 60_000, 10_000)),
    (b"GET s " + b"n" * 100 + b" 5", c.Get(b"s", b"n" * 100, 5, 1)),
    (b"ack s n 7", c.Finish(b"s", b"n", 7, 7)),
    (b"ack on n 7", c.Finish(b"on", b"n", 7, 7)),
    (b"ack s n 7 7", c.Finish(b"s", b"n", 7, 7)),
    (b"ack s n 0 %d" % NUMBER_MAX, c.Finish(b"s", b"n", 0, NUMBER_MAX)),
    (b"nack s n 7", c.Nack(b"s", b"n", 7)),
    ("nack s n 7 grün".encode(), c.Nack(b"s", b"n", 7, "grün")),
    (b"nack s n 7 \xff", c.Nack(b"s", b"n", 7, "\N{REPLACEMENT CHARACTER}")),
    (b"reset s n #5", c.Reset(b"s", b"n", c.From("seq", 5))),
    (b"unconsume s n", c.Unconsume(b"s", b"n")),
    (b"leave s n", c.Leave(b"s", b"n")),
    (b"consumers s", c.Consumers(b"s")),
    (b"auth ann secret|x", c.Auth(b"ann", b"secret|x")),
    (b"sub 100% 0", c.Subscribe(b"100%", c.From("time", 0))),
    (b"sub 100%/$dead 0", c.Subscribe(b"100%/$dead", c.From("time", 0))),
    (b"sub $cursor/a%/b 0", c.Subscribe(b"$cursor/a%/b", c.From("time", 0))),
    (b"sub a%20b/+/100%25 0", c.Subscribe(b"a b/+/100%", c.From("time", 0))),
    (b"sub a/" + b"n" * 1_022 + b" 0", c.Subscribe(b"a/" + b"n" * 1_022, c.From("time", 0))),
    (b"unsub a%7Cb/c", c.Unsubscribe(b"a|b/c")),
    (b"last a%20b/c", c.ReadLast(b"a b/c")),
    (b"consume a%20b/c n 0", c.Consume(b"a b/c", b"n", c.From("time", 0))),
    (b"get a%20b/c n", c.Get(b"a b/c", b"n", 0, 1)),
    (b"ack a%20b/c n 7", c.Finish(b"a b/c", b"n", 7, 7)),
    (b"nack a%20b/c n 7", c.Nack(b"a b/c", b"n", 7)),
    (b"reset a%20b/c n #5", c.Reset(b"a b/c", b"n", c.From("seq", 5))),
    (b"leave a%20b/c n", c.Leave(b"a b/c", b"n")),
    (b"consumers a%20b/c", c.Consumers(b"a b/c")),
    (b"delete a/b%20c", c.Delete(b"a/b%20c")),  # administrators name streams, as `streams` does
    (b"streams", c.Streams()),
    (b"streams log.", c.Streams(b"log.")),
    (b"streams $", c.Streams(b"$")),
    (b"grown", c.GrownStreams()),
    (b"grown 4c0b7a3e.17", c.GrownStreams(b"4c0b7a3e.17")),
    (b"stat s", c.Stat(b"s")),
    (b"workers", c.Workers()),
    (b"space", c.Space()),
    (b"conns", c.Conns()),
    (b"PULL", c.Pull()),
    (b"pull 1000", c.Pull(1_000)),
    (b"sessions", c.Sessions()),
    (b"sessions a%20b", c.Sessions(b"a b")),
    (b"forget %25", c.ForgetSession(b"%")),
    (b"shutdown", c.Shutdown()),
    (b"shutdown node-1", c.Shutdown(b"node-1")),
]

BAD: list[tuple[bytes, Code]] = [
    (b"", Code.COMMAND),
    (b"|", Code.COMMAND),
    (b"nonsense", Code.COMMAND),
    (b"POST / HTTP/1.1", Code.COMMAND),
    (b"\0\1\2", Code.COMMAND),
    (b"ping\0", Code.COMMAND),
    (b"p" * 10_000, Code.COMMAND),
    (b"pub", Code.USAGE),
    (b"pub s", Code.USAGE),
    (b"pub s hello", Code.USAGE),
    (b"pub |x", Code.USAGE),
    (b"pub a b |x", Code.NAME),
    (b"pub a topic |x", Code.NAME),
    (b"pub a topic b c |x", Code.NAME),
    (b"pub a topic b" + b" " * 4_096 + b"|x", Code.NAME),
    (b"pub topic a |x", Code.NAME),
    (b"pub a topic b/+ |x", Code.TOPIC),
    (b"pub a topic %00 |x", Code.TOPIC),
    (b"pub $a topic b |x", Code.RESERVED),
    (b"pub s topic a |" + b"x" * (MAX - 4), Code.SIZE),
    (b"sub s 0 topics", Code.USAGE),
    (b"sub s topics a", Code.FROM),
    (b"sub s 0 topics a wait", Code.USAGE),
    (b"sub s 0 topics a#", Code.TOPIC),
    (b"sub s* 0 topics a", Code.USAGE),
    (b"pub a%2/b |x", Code.TOPIC),
    (b"pub a%00/b |x", Code.TOPIC),
    (b"pub a%20/%2B |x", Code.TOPIC),
    (b"pub a/" + b"n" * 1_023 + b" |x", Code.TOPIC),
    (b"pub a/" + b"n" * 200 + b"/$dead |x", Code.RESERVED),
    (b"pub $a/%20 |x", Code.RESERVED),
    (b"sub a%2/b 0", Code.TOPIC),
    (b"sub a/" + b"n" * 1_023 + b" 0", Code.TOPIC),
    (b"delete a/" + b"n" * 200, Code.NAME),
    (b"last $last/*", Code.RESERVED),
    (b"last $last/s", Code.RESERVED),
    (b"last $cursor/# after s a", Code.RESERVED),
    (b"pub $a |x", Code.RESERVED),
    (b"pub " + b"n" * 201 + b" |x", Code.NAME),
    (b"pub \xff |x", Code.NAME),
    (b"pub \xc2\xa0 |x", Code.NAME),
    (b"pub a\x1bb |x", Code.NAME),
    (b"pub s |" + b"x" * (MAX + 1), Code.SIZE),
    (b"ack", Code.USAGE),
    (b"ack maybe", Code.USAGE),
    (b"ack on off", Code.USAGE),
    (b"ack s n", Code.USAGE),
    (b"ack s n x", Code.USAGE),
    (b"lease s 1 1", Code.USAGE),
    (b"lease *%16/16 1 1", Code.USAGE),
    (b"isr *%0/257", Code.USAGE),
    (b"groups *", Code.USAGE),
    (b"ack s n 7 6", Code.USAGE),
    (b"ack s n 1 2 3", Code.USAGE),
    (b"ack $s n 7", Code.RESERVED),
    (b"ack s " + b"n" * 101 + b" 7", Code.USAGE),
    (b"consume s n", Code.USAGE),
    (b"consume s n x", Code.FROM),
    (b"consume a|b n 0", Code.NAME),
    (b"consume $s n 0", Code.RESERVED),
    (b"consume s n\xff 0", Code.USAGE),
    (b"unconsume s", Code.USAGE),
    (b"leave s", Code.USAGE),
    (b"leave s n x", Code.USAGE),
    (b"get s", Code.USAGE),
    (b"get s n x", Code.USAGE),
    (b"get s n 60001", Code.USAGE),
    (b"get s n 0 10001", Code.USAGE),
    (b"get s n 0 1 2", Code.USAGE),
    (b"nack s n", Code.USAGE),
    (b"nack s n 7 " + b"x" * 201, Code.USAGE),
    (b"nack s n x", Code.USAGE),
    (b"reset s n", Code.USAGE),
    (b"consumers", Code.USAGE),
    (b"consumers $s", Code.RESERVED),
    (b"sub s", Code.USAGE),
    (b"sub", Code.USAGE),
    (b"sub s 0 1 2", Code.USAGE),
    (b"sub s 0 x", Code.USAGE),
    (b"sub s 0 -1", Code.USAGE),
    (b"sub s #0 1", Code.USAGE),
    (b"sub s new 1", Code.USAGE),
    (b"sub s -x", Code.FROM),
    (b"sub s #", Code.FROM),
    (b"sub s #x", Code.FROM),
    (b"sub s # 5", Code.FROM),
    (b"sub s old", Code.FROM),
    (b"sub s 1.5", Code.FROM),
    (b"sub s 1_000", Code.FROM),
    ("sub s ٣".encode(), Code.FROM),
    (b"sub s %d" % (NUMBER_MAX + 1), Code.FROM),
    (b"sub s " + b"9" * 4_000, Code.FROM),
    (b"sub s " + b"9" * 100_000, Code.USAGE),
    (b"sub a|b 0", Code.NAME),
    (b"sub $a 0", Code.RESERVED),
    (b"sub \xff 0", Code.NAME),
    (b"unsub", Code.USAGE),
    (b"unsub a b", Code.USAGE),
    (b"ping pong", Code.USAGE),
    (b"help me", Code.USAGE),
    (b"close now", Code.USAGE),
    (b"master", Code.USAGE),
    (b"master $a", Code.RESERVED),
    (b"unmaster a|b", Code.NAME),
    (b"slave h 5050 s", Code.USAGE),
    (b"slave h 0 s 0", Code.USAGE),
    (b"slave h 65536 s 0", Code.USAGE),
    (b"slave h x s 0", Code.USAGE),
    (b"slave h/p 1 s 0", Code.USAGE),
    (b"slave " + b"h" * 256 + b" 1 s 0", Code.USAGE),
    (b"slave h 1 s x", Code.FROM),
    (b"slave h 1 a|b 0", Code.NAME),
    (b"slave h 1 $* 0", Code.RESERVED),
    (b"slave h 1 a|* 0", Code.NAME),
    (b"slave \xff 1 s 0", Code.USAGE),
    (b"unslave", Code.USAGE),
    (b"unslave " + b"n" * 201 + b"*", Code.NAME),
    (b"promote", Code.USAGE),
    (b"promote a b", Code.USAGE),
    (b"promote a 0", Code.USAGE),
    (b"promote a 4294967296", Code.USAGE),
    (b"promote a* 7 8", Code.USAGE),
    (b"promote a 7 8", Code.USAGE),
    (b"master a b", Code.USAGE),
    (b"fence a", Code.USAGE),
    (b"lease a 7 1", Code.USAGE),
    (b"lease * 7", Code.USAGE),
    (b"promises a 7 4000 b:1", Code.USAGE),
    (b"promises * 7 0 b:1", Code.USAGE),
    (b"promises * 7 999999 b:1", Code.USAGE),
    (b"promises * 7 4000 b", Code.USAGE),
    (b"promises * 7 4000 " + b",".join([b"b:1"] * 61), Code.USAGE),
    (b"lease * 0 1", Code.USAGE),
    (b"lease * 7 -1", Code.USAGE),
    (b"lease * 7 1234567890123", Code.USAGE),
    (b"isr a", Code.USAGE),
    (b"isr * a,,b", Code.USAGE),
    (b"isr * " + b",".join([b"a"] * 61), Code.USAGE),
    (b"isr * " + b"a" * 33, Code.USAGE),
    (b"fence a 0", Code.USAGE),
    (b"fence a b", Code.USAGE),
    (b"fence $a 7", Code.RESERVED),
    (b"promote $a", Code.RESERVED),
    (b"promote \xff*", Code.NAME),
    (b"delete s t", Code.USAGE),
    (b"trim s", Code.USAGE),
    (b"trim s new", Code.FROM),
    (b"trim s #", Code.FROM),
    (b"trim s #5 keep", Code.USAGE),
    (b"streams a b", Code.USAGE),
    (b"streams a|b", Code.NAME),
    (b"quit now", Code.USAGE),
]


@pytest.mark.parametrize(("line", "expected"), GOOD, ids=repr)
def test_good_lines(line: bytes, expected: object) -> None:
    assert parsed(line) == expected


@pytest.mark.parametrize(("line", "code"), BAD, ids=lambda value: repr(value)[:40])
def test_bad_lines_get_an_error_that_can_be_shown(line: bytes, code: Code) -> None:
    command = parse_line(line, MAX)
    assert isinstance(command, c.Invalid)
    assert command.error.code is code
    assert command.error.text.isprintable()
    assert len(command.error.text) < 300
    assert not command.error.fatal
    assert command.error.__traceback__ is None  # it would keep the line alive


def test_every_command_is_tried_and_usage_shows_its_form() -> None:
    tried = {type(parse_line(line, MAX)) for line, _ in GOOD}
    assert tried == {kind for kind in c.Command.__args__ if kind not in (c.Invalid, c.Foreign, c.Reply)}
    for word, verb in VERBS.items():
        assert verb.form.encode().startswith(word)
        bad = parse_line(word + b" 1 2 3 4 5 6", MAX)
        assert isinstance(bad, c.Invalid)
        assert verb.form in bad.error.text


def test_the_admin_commands_are_those_of_the_table() -> None:
    verbs = [(line, verb_of(line.split()[0])) for line, _ in GOOD]
    admin = {type(parse_line(line, MAX)) for line, verb in verbs if verb is not None and verb.admin}
    assert admin == c.ADMIN


@pytest.mark.parametrize("word", VERBS)
def test_commands_in_any_case(word: bytes) -> None:
    lines = [line for line, _ in GOOD if line.split()[0].lower() == word]
    for line in lines:
        rest = line.lstrip()[len(word) :]
        assert parsed(word.upper() + rest) == parsed(word.title() + rest) == parsed(line)


@given(st.sampled_from(list(VERBS)), st.binary(max_size=40).map(lambda data: data.replace(b"\n", b" ")))
def test_any_arguments_give_a_command_or_a_clean_error(word: bytes, rest: bytes) -> None:
    command = parse_line(word + b" " + rest, MAX)
    assert isinstance(command, c.Command)
    if isinstance(command, c.Invalid):
        assert command.error.text.isprintable()


def test_is_blank() -> None:
    assert is_blank(b"")
    assert is_blank(b" \t\r\n")
    assert is_blank(bytearray(b" "))
    assert not is_blank(b" x ")
    assert not is_blank(b"\0")
