"""`tailrace tail`: the messages of a stream, from its past and as they come."""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Sequence

import click

from tailrace import (
    NOW,
    Client,
    ConnectionLost,
    Message,
    OperationTimeout,
    StreamDeleted,
    Subscription,
    TailraceError,
    Trimmed,
    Unsupported,
)
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, CommandError, complain
from tailrace.cli.notes import notes_shown
from tailrace.cli.options import check_filter, check_stream, reconnect_option, server_options, start_option
from tailrace.cli.output import render_json, render_plain, write_all
from tailrace.cli.server import choose_server, connect
from tailrace.core.address import Address
from tailrace.core.listing import WILDCARD, checked_patterns, is_pattern, matcher
from tailrace.core.places import EndPlace, Last, StartPlace
from tailrace.protocol.topics import escaped, has_wildcards
from tailrace.sync.merged_subscription import MergedSubscription

EPILOG = """\b
Examples:
  tailrace tail access-log
  tailrace tail -n 100 access-log
  tailrace tail 'orders.*' returns
  tailrace tail access-log --from new
  tailrace tail access-log --from "10m ago" --count 100
  tailrace tail access-log --from 2024-05-31T12:00:00Z --no-follow > noon.log
  tailrace tail access-log --from '#1000' --json | jq .payload
  tailrace tail sensors/7/temp
  tailrace tail 'sensors/+/temp' --from 0

Without -n and --from it begins with the last 10 messages, and goes on with new ones. STREAMS are names and patterns, in
which * stands for any characters; streams of a pattern that are made later are shown from their first message on. With
several streams each line begins with the name of the stream and a tab.

The name may be a topic, such as sensors/7/temp, or a filter, in which + stands for any one level, and # at the end for
any further ones: then each line begins with the topic and a tab.

Each message is written byte for byte with a line feed after it. With --json each is an object on a line of its own:
stream, seq, timestamp_us, time, topic if it has one, and payload, or payload_base64 if the message is not UTF-8.
--headers puts the user headers before each message, as a JSON object and a tab, or into its object as the member
headers.

With --topics only messages of STREAMS whose topic the filter matches are shown, each behind its topic and a tab. -n
counts the other messages too, here as with a topic or a filter in place of a stream.

A lost connection is made again, and reading continues after the last message. When one of several streams is deleted,
that is said on standard error, and the others are read on.

Exit codes: 0 done (or the reader of the output has gone), 1 refused by the broker, 2 wrong arguments, 4 no connection
or lost (the seq to continue from is shown), 130 interrupted.
"""


def is_one(streams: Sequence[str]) -> bool:
    """Whether only one stream or topic is meant, by its name."""
    return len(streams) == 1 and not is_pattern(streams[0]) and not has_wildcards(streams[0].encode())


class LinePrefix:
    """Shown before each message of several streams: the stream if it was asked for, else the topic."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._matchers = [matcher(each) for each in patterns]
        self._is_asked: dict[str, bool] = {}

    def __call__(self, message: Message) -> bytes:
        is_asked = self._is_asked.get(message.stream)
        if is_asked is None:
            is_asked = any(matches(message.stream) for matches in self._matchers)
            self._is_asked[message.stream] = is_asked
        return message.stream.encode() if is_asked else escaped(message.topic.encode())


def topics_of(pattern: str) -> str:
    """The filter that somebody may have meant with a pattern such as `orders/*`."""
    levels = ["+" if WILDCARD in level else level for level in pattern.split("/")]
    return "/".join((*levels[:-1], "#" if WILDCARD in pattern.rpartition("/")[2] else levels[-1]))


Deliver = Callable[[list[Message]], None]

STDOUT = 1
LINES = 10
"""Messages before the end to begin with, unless told otherwise."""
LOOK_S = 0.25  # how often the reader of the output is looked for while no message comes


def _check_streams(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        check_stream(ctx, parameter, value.replace(WILDCARD, "x"))
    return checked_patterns(values)


@click.command("tail", epilog=EPILOG)
@click.argument("streams", nargs=-1, required=True, callback=_check_streams)
@click.option("--lines", "-n", "last", type=click.IntRange(0), metavar="N", help="Begin N messages before the end.")
@start_option(None)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
@click.option("--headers", "with_headers", is_flag=True, help="Show user headers too.")
@click.option(
    "--topics", callback=check_filter, metavar="FILTER", help="Only messages whose topic matches; show it too."
)
@click.option("--follow/--no-follow", "-f/ ", default=True, help="Continue with new messages, or stop at the end.")
@click.option("--wait", is_flag=True, help="Wait for a stream that does not exist yet.")
@reconnect_option
@server_options
def command(
    streams: tuple[str, ...],
    last: int | None,
    start: StartPlace | None,
    count: int | None,
    as_json: bool,
    with_headers: bool,
    topics: str | None,
    follow: bool,
    wait: bool,
    reconnect_s: float,
) -> int:
    """Print the messages of STREAMS."""
    if last is not None and start is not None:
        raise click.UsageError("-n and --from: pass one of them")
    if wait and not follow:
        raise click.UsageError("--wait waits for messages to come, and --no-follow does not")
    if start is None:
        start = Last(LINES if last is None else last)
    chosen = choose_server()
    name_of = None if is_one(streams) else LinePrefix(streams)

    def deliver(messages: list[Message]) -> None:
        if as_json:
            write_all(STDOUT, render_json(messages, with_headers=with_headers))
        else:
            plain = render_plain(messages, with_headers=with_headers, with_topic=bool(topics), name_of=name_of)
            write_all(STDOUT, plain)

    with notes_shown(), connect(chosen, reconnect_s) as client:
        tail = Tail(client, chosen, streams, topics or "")
        tail.run(start, follow=follow, count=count, wait=wait, deliver=deliver)
    return OK


class Tail:
    """One run of `tailrace tail`: yields messages in batches and turns the client's errors into the command's."""

    def __init__(self, client: Client, server: Address, streams: Sequence[str], topics: str = "") -> None:
        self._client = client
        self._server = server
        self._topics = topics
        self._streams = streams[0] if len(streams) == 1 else streams
        self._is_one = True
        self._next_seq = -1  # of the next message, of one stream

    def run(
        self,
        start: StartPlace,
        *,
        follow: bool,
        count: int | None,
        wait: bool,
        deliver: Callable[[list[Message]], None],
    ) -> None:
        """Until `count` messages, the end as it is now, or for ever. Raises CommandError, BrokenPipeError."""
        left = math.inf if count is None else count
        try:
            subscription = self._subscribe(start, follow, wait)
            self._is_one = not isinstance(subscription, MergedSubscription)
            while left > 0 and (messages := self._next_batch(subscription)):
                del messages[int(min(left, len(messages))) :]
                left -= len(messages)
                if self._is_one:
                    self._next_seq = messages[-1].seq + 1
                deliver(messages)
        except ConnectionLost as error:
            raise CommandError(self._lost_text(error), NO_CONNECTION) from None
        except TailraceError as error:
            after = f" after seq {self._next_seq - 1}" if self._next_seq > 0 else ""
            raise CommandError(f"{self._server}: {error}{after}", REFUSED) from None

    def _subscribe(self, start: StartPlace, follow: bool, wait: bool) -> Subscription:
        streams = self._streams
        end: EndPlace = None if follow else NOW
        try:
            subscription = self._client.subscribe(streams, start, end, wait=wait, topics=self._topics)
        except Unsupported:
            if not isinstance(streams, str) or not has_wildcards(streams.encode()) or self._topics:
                raise
            subscription = self._client.subscribe(WILDCARD, start, end, wait=wait, topics=streams)
        if isinstance(subscription, MergedSubscription) and not subscription.streams:
            self._say_that_none_is_there("; those that are made later are shown" if follow else "")
        return subscription

    def _say_that_none_is_there(self, then: str) -> None:
        [*patterns] = [self._streams] if isinstance(self._streams, str) else self._streams
        meant = [topics_of(each) for each in patterns if is_pattern(each) and "/" in each and "/$" not in each]
        hint = f"; a filter of topics is written {' '.join(meant)}" if meant else ""
        complain(f"tailrace: no streams of {', '.join(patterns)}{then}{hint}")

    def _next_batch(self, subscription: Subscription) -> list[Message]:
        """At least one message; [] at the end."""
        while True:
            try:
                return subscription.receive_batch(LOOK_S)
            except OperationTimeout:
                if reader_has_gone(STDOUT):
                    raise BrokenPipeError from None
            except StreamDeleted as error:
                if self._is_one:
                    raise
                complain(f"tailrace: {error.stream} was deleted; the other streams are read on")
            except Trimmed as trimmed:
                text = f"seqs {trimmed.first_seq} to {trimmed.last_seq} are missing: they were trimmed"
                complain(f"tailrace: {text}")

    def _lost_text(self, error: ConnectionLost) -> str:
        text = f"connection to {self._server} lost ({error})"
        if self._next_seq > 0:
            text += f" after seq {self._next_seq - 1}; continue with --from '#{self._next_seq}'"
        return text


def reader_has_gone(fd: int) -> bool:
    """Returns whether the output has no reader any more."""
    poller = select.poll()
    poller.register(fd, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poller.poll(0))
