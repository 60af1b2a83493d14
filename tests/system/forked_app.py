"""A web application that connects and publishes while it is loaded, before gunicorn with --preload forks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import tailrace

client = tailrace.connect(os.environ["BROKER"])
client.publish("preloaded", b"master")
inherited = client


def app(environ: dict[str, str], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Publishes the path; answers with its seq, the payload, and the inherited client's error."""
    global client
    payload = environ["PATH_INFO"].removeprefix("/")
    said = "nothing"
    try:
        inherited.publish("preloaded", b"lost?")
    except tailrace.ClientClosed as closed:
        said = type(closed).__name__
        if client is inherited:
            client = tailrace.connect(os.environ["BROKER"])
    receipt = client.publish("preloaded", payload.encode())
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{receipt.seq} {payload} {said}".encode()]
