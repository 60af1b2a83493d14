"""The documented example, `deploy/tailrace.toml`, made from the settings themselves.

Every key is there once, commented out, with its default and its description. To renew the file after a change of the
settings: `python -m tailrace.supervisor.config_example > deploy/tailrace.toml` (a test fails when it is due).
"""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from tailrace.broker.process.setting_specs import Kind, Spec, spec_of
from tailrace.broker.process.settings import SlaveRule, StreamPolicy, described_fields
from tailrace.supervisor.config_values import format_number

_WIDTH = 116

_OPENING = """\
# tailrace: every key with its default. A key that is commented out has this default.
#
# Check a file without starting anything:   tailrace serve --config FILE --check-config
# Flags of `tailrace serve` win over this file; each key is a flag, see `tailrace serve --help`.
#
# Sizes are numbers of bytes or text such as "8 MiB" (B kB MB GB TB KiB MiB GiB TiB PiB).
# Times are numbers in the unit at the end of their key's name, or text such as "30 s" (ms s min h d w).
"""

_STREAM_OPENING = """\
# How long and how safely streams are kept. As many [[stream]] sections as needed; the first whose pattern matches a
# stream's name holds for it, and a stream that none matches has the defaults below. For example:
#
#   [[stream]]
#   pattern = "orders.*"
#   durability = "always"
#
#   [[stream]]
#   pattern = "log.*"
#   max_age_s = "7 d"
#   max_bytes = "20 GiB"
#
"""

_SLAVE_OPENING = """\
# Streams that this node copies from another one, including those created later. As many [[slave]] sections as needed;
# the first whose streams match holds, and a stream that none matches is this node's own. The commands slave, unslave
# and promote, given to the running node, count before these. For example:
#
#   [[slave]]
#   streams = "*"
#   upstream = "10.0.0.1:5050"
#
"""

_TOPICS = """\
# Names that are topics of a stream, which holds many of them, and so cost no files of their own. As many [[topics]]
# sections as needed; the first whose filter matches a name holds. A name with a `/` that none matches is a topic of the
# stream of its first level, one without a `/` is a stream.
# A filter is as in MQTT: + is any one level, a last # any number of further ones. In stream, {1} is the first level
# of the name, {hash:16} a number from 0 to 15 that the name gives, and {topic}, by itself, the whole name. For example,
# sixteen streams share all names below sensors/, and each name below reports/ is a stream of its own:
#
#   [[topics]]
#   filter = "sensors/#"
#   stream = "sensors-{hash:16}"
#
#   [[topics]]
#   filter = "reports/#"
#   stream = "{topic}"
#
"""

_UDP_PEERS = """\
# What clients by UDP may do, by their addresses: filters of the topics that they may publish and subscribe to. As many
# [[udp_peer]] sections as needed; the first with the address holds, and an address in none of them may do nothing.
# Without any section everybody may do everything by UDP, where no user and no token is configured. For example:
#
#   [[udp_peer]]
#   addresses = ["10.0.1.0/24"]
#   publish = ["sensors/#"]
#   subscribe = ["commands/+"]
#
"""

_SECTION_TITLES = {
    "node": "The node and its data.",
    "listen": "Address for clients.",
    "udp": "Datagrams, where [listen] udp is true.",
    "access": "Who may do what.",
    "tls": "TLS on the same port: its certificate, those of clients, connections to other nodes.",
    "replication": "Nodes that may follow and claim streams, besides those on this machine.",
    "cluster": "Automatic failover.",
    "metrics": "Address for Prometheus and probes.",
    "log": "What the log has of peers.",
    "mqtt": "What MQTT's acknowledgements promise.",
    "limits": "Limits on peers, streams and memory.",
    "timing": "Timeouts and intervals.",
}


def render_example() -> str:
    """The text of the documented example file."""
    parts = [_OPENING]
    section = ""
    for each in described_fields():
        spec = spec_of(each)
        if spec.section != section:
            section = spec.section
            parts.append(f"\n# {_SECTION_TITLES[section]}\n[{section}]\n")
        parts.append(_entry(spec, each))
    parts.append(f"\n{_STREAM_OPENING}#[[stream]]\n")
    parts.extend(_entry(spec_of(each), each) for each in fields(StreamPolicy))
    parts.append(f"\n{_SLAVE_OPENING}#[[slave]]\n")
    parts.extend(_entry(spec_of(each), each) for each in fields(SlaveRule))
    parts.append(f"\n{_TOPICS}")
    parts.append(f"\n{_UDP_PEERS}")
    return "".join(parts)


def _entry(spec: Spec, field: Field[Any]) -> str:
    doc = textwrap.wrap(_sentence(spec), _WIDTH, initial_indent="# ", subsequent_indent="# ")
    return "\n".join(doc) + f"\n#{spec.key} = {_literal(spec, field.default)}\n"


def _sentence(spec: Spec) -> str:
    text = spec.doc[0].upper() + spec.doc[1:]
    if spec.high:
        text += f" ({format_number(spec.kind, spec.low)} to {format_number(spec.kind, spec.high)})"
    return f"{text}. 0: {spec.zero}." if spec.zero else f"{text}."


def _literal(spec: Spec, default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if spec.kind is Kind.COUNT:
        return str(default)
    if isinstance(default, int | float):
        text = format_number(spec.kind, default)
        return str(default) if text == "0" or "," in text else json.dumps(text)
    if spec.kind is Kind.ADDRESSES and not default:
        return '""'
    if isinstance(default, tuple):
        return json.dumps(list(default))
    return json.dumps(str(default) if isinstance(default, Path) else default)


if __name__ == "__main__":
    sys.stdout.write(render_example())
