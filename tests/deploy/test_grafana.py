"""The dashboard of Grafana: each panel's query is answered by a real Prometheus that scrapes a node's metrics."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_prometheus import full_scrape, served_names
from tests.system.node import wait_for

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "tailrace.json").read_text())
PANELS: list[dict[str, Any]] = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
QUERIES = {f"{panel['title']}: {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}
# Right if it is empty: nothing was refused.
MAY_BE_EMPTY = {"Refused by code: A"}


def asked(expr: str) -> str:
    """As Grafana sends it: with the variables filled in."""
    return expr.replace("$job", "tailrace").replace("$instance", ".*").replace("$__rate_interval", "1m")


def test_panels_use_families_that_are_served() -> None:
    served = served_names()
    for title, expr in QUERIES.items():
        for name in re.findall(r"tailrace_\w+", expr):
            assert re.sub(r"_(total|bucket)$", "", name) in served, f"{title}: {name}"


def test_panels_do_not_lie_over_each_other() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _y in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@contextmanager
def metrics(text: str) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[str]:
    """A Prometheus that scrapes this port; its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: tailrace, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
    )
    log, listens = folder / "log", re.compile(r'"Listening on" address=(\S+)')
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb", "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as output:
        process = subprocess.Popen([program, *arguments], stdout=output, stderr=output)
    try:
        wait_for(lambda: listens.search(log.read_text()), "Prometheus listens")
        found = listens.search(log.read_text())
        assert found is not None
        yield f"http://{found[1]}"
    finally:
        process.kill()
        process.wait()


def query(address: str, expr: str) -> list[Any]:
    with urllib.request.urlopen(f"{address}/api/v1/query?{urllib.parse.urlencode({'query': expr})}", timeout=60) as got:
        answer = json.load(got)
    assert answer["status"] == "success"
    found: list[Any] = answer["data"]["result"]
    return found


@pytest.mark.system
def test_each_panel_is_answered_by_prometheus(tmp_path: Path) -> None:
    with metrics(full_scrape(tmp_path)) as port, prometheus(tmp_path, port) as address:

        def scraped_twice() -> bool:
            try:
                found = query(address, 'count_over_time(up{job="tailrace"}[5m])')
            except urllib.error.HTTPError:
                return False  # 503: it is starting
            return bool(found) and float(found[0]["value"][1]) >= 2

        wait_for(scraped_twice, "two scrapes")
        answers = {title: query(address, asked(expr)) for title, expr in QUERIES.items()}
    assert {title for title, found in answers.items() if not found} <= MAY_BE_EMPTY
    assert len(answers) == sum(len(panel["targets"]) for panel in PANELS) > len(PANELS) >= 20
