"""HOST:PORT as people and peers write it: `10.0.0.1:5050`, `broker-2:5050`, `[::1]:5050`."""

from __future__ import annotations

import re
from typing import Final

PORT_MAX: Final = 65_535
HOST_BYTES_MAX: Final = 255
ADDRESS_BYTES_MAX: Final = HOST_BYTES_MAX + len("[]:65535")

_HOST = re.compile(rf"[A-Za-z0-9.:_%-]{{1,{HOST_BYTES_MAX}}}")
_ADDRESS = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^:\[\]]*)):([0-9]{1,5})")


def host_valid(host: str) -> bool:
    """Returns whether this is a valid host: a name, an IPv4 or a bare IPv6 address. Nothing is resolved."""
    return _HOST.fullmatch(host) is not None


def split_address(text: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT` or `[V6]:PORT`. ValueError, with a text for its writer, for anything else."""
    match = _ADDRESS.fullmatch(text) if len(text) <= ADDRESS_BYTES_MAX else None
    if match is None:
        raise ValueError("write HOST:PORT, an IPv6 address as [V6]:PORT")
    host = match[1] or match[2]
    if not host_valid(host):
        raise ValueError("the host before the port is missing" if not host else "invalid host")
    port = int(match[3])
    if not 0 < port <= PORT_MAX:
        raise ValueError(f"a port is 1 to {PORT_MAX}")
    return host, port


def join_address(host: str, port: int) -> str:
    """The text that `split_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
