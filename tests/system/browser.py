"""A web page, and a real browser that opens it."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from bench.ports import free_port


@contextlib.contextmanager
def serving(page: str, port: int = 0) -> Iterator[int]:
    """The page on a port of its own, which is any free one by default."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port or free_port()), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def browsing(browser: str, url: str, folder: Path) -> Iterator[None]:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    flags += ["--host-resolver-rules=MAP rebound.example 127.0.0.1", "--remote-debugging-port=0"]
    with (folder / "browser").open("wb") as log:
        process = subprocess.Popen([browser, *flags, url], stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
