"""Answers to a peer of the line protocol. Every answer is whole lines that end in CRLF.

ok …            one line
ok FIELD …      several lines: the names of the fields, a line a row, and a line `.`
err CODE text   one line
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Final, TypeAlias

from tailrace.protocol.errors import Code, UsageError
from tailrace.protocol.grammar import VERBS, WORDS, verb_of
from tailrace.protocol.topics import escaped, word_of_name
from tailrace.shard.leaves import load

PulledRows: TypeAlias = Iterable[tuple[bytes, str]]
"""Topics with their subscribers, by topic."""
TEXT_CHARACTERS_MAX: Final = 1_000
END_OF_LINES: Final = b".\r\n"

_text_cy = load("tailrace.protocol.text_cy")


def err(code: Code, text: str) -> bytes:
    """`err CODE text`. Characters that would break the line are replaced, and the text is cut at a bound."""
    return f"err {code.value} {_one_line(text)}\r\n".encode("utf-8", "replace")


def publish_refused(name: bytes, count: int, code: Code, text: str) -> bytes:
    """One `err` for `count` consecutive messages to the stream `name` that were not logged."""
    stream = word_of_name(name).decode("utf-8", "replace")
    return err(code, f"{stream}: {text}" if count == 1 else f"{stream}: {count} messages: {text}")


def ok(word: str, *fields: bytes | str | int) -> bytes:
    """`ok WORD FIELD…`, all with a blank between."""
    texts = [field if isinstance(field, bytes) else str(field).encode() for field in fields]
    return b" ".join([b"ok", word.encode(), *texts]) + b"\r\n"


def ok_pub(names: Sequence[bytes], order: Sequence[int], first_seqs: Sequence[int]) -> bytes:
    """`ok pub STREAM SEQ` for each message: order[i] is the stream's index; its seqs count up from first_seqs."""
    text: bytes = _text_cy.acknowledge(list(names), list(order), list(first_seqs))
    return text


def ok_pub_each(name: bytes, first_seq: int, count: int) -> list[bytes]:
    """The lines of `ok_pub` for as many messages of one stream."""
    if count == 1:
        return [b"ok pub %b %d\r\n" % (name, first_seq)]
    return ok_pub([name], [0] * count, [first_seq]).splitlines(keepends=True)


def ok_sub(name: bytes, next_seq: int, stream: bytes = b"") -> bytes:
    """`stream`: in which the topics lie that the name stands for."""
    return b"ok sub %s %d%s\r\n" % (word_of_name(name), next_seq, b" stream=" + stream if stream else b"")


def ok_last(name: bytes, count: int, stream: bytes = b"", topic: bytes = b"") -> bytes:
    """`stream`, `topic`: the place to go on after, if there is more."""
    more = b" after %s %s" % (stream, escaped(topic)) if stream else b""
    return b"ok last %s %d%s\r\n" % (word_of_name(name), count, more)


def ok_unsub(name: bytes) -> bytes:
    return b"ok unsub %s\r\n" % word_of_name(name)


def ok_ack(on: bool) -> bytes:
    return b"ok ack on\r\n" if on else b"ok ack off\r\n"


def pong() -> bytes:
    return b"ok pong\r\n"


@cache
def help_text(*, admin: bool) -> bytes:
    """The list of commands; includes those of administrators only for peers that may use them."""
    rows = [verb for verb in VERBS.values() if admin or not verb.admin]
    width = max(len(verb.form) for verb in rows)
    lines = [f"{verb.form:{width}}  {verb.meaning}\r\n" for verb in rows]
    return b"ok command meaning\r\n" + "".join(lines).encode() + END_OF_LINES


def help_on(word: bytes, *, admin: bool) -> bytes:
    """The forms of one command, and the meaning of the words in them."""
    found = verb_of(word)
    verbs = [verb for verb in VERBS.values() if found is not None and verb.form.split()[0] == found.form.split()[0]]
    rows = [(verb.form, verb.meaning) for verb in verbs or filter(None, [found]) if admin or not verb.admin]
    named = dict.fromkeys(part for form, _meaning in rows for part in re.findall(r"[A-Z_]{3,}", form))
    rows += [(part, WORDS[part]) for part in named if part in WORDS]
    width = max((len(form) for form, _meaning in rows), default=0)
    lines = [f"{form:{width}}  {meaning}\r\n" for form, meaning in rows]
    return b"ok command meaning\r\n" + "".join(lines).encode() + END_OF_LINES


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Rows of blank-separated fields under their names. A field is never empty (`-`) and holds no blank (`_`).

    Raises UsageError for fewer than two columns: a row of one field could be a lone `.`.
    """
    if len(columns) < 2:
        raise UsageError(f"a table has at least two columns, this one has {list(columns)}")
    lines = [f"ok {' '.join(columns)}\r\n"]
    lines += [" ".join([_field(value) for value in row]) + "\r\n" for row in rows]
    return "".join(lines).encode("utf-8", "replace") + END_OF_LINES


def pulled(place: int, pages: Iterable[tuple[PulledRows, PulledRows]]) -> bytes:
    """The text of fastpuss: a topic, its subscribers a line each, and an empty line.

    pages: what was asked for with PULL, and what other nodes have pushed. `place`: where to go on; 0 at the end.
    """
    kept, pushed = zip(*pages, strict=True)
    blocks = _blocks(b"", chain.from_iterable(kept)) + _blocks(b"PUSH\r\n", chain.from_iterable(pushed))
    return ok("pull", place or "end") + b"".join(blocks) + END_OF_LINES


def _blocks(head: bytes, rows: Iterable[tuple[bytes, str]]) -> list[bytes]:
    blocks: list[bytes] = []
    for topic, found in groupby(rows, itemgetter(0)):
        name = b"%2E" if topic == b"." else escaped(topic)
        lines = [name, *(f"/{client}".encode("utf-8", "replace") for _topic, client in found)]
        blocks.append(head + b"\r\n".join(lines) + b"\r\n\r\n")
    return blocks


def _field(value: object) -> str:
    return "_".join(str(value).split()) or "-"


def _one_line(text: str) -> str:
    """Printable, on one line, bounded."""
    cut = text[:TEXT_CHARACTERS_MAX]
    return cut if cut.isprintable() else "".join([each if each.isprintable() else "?" for each in cut])
