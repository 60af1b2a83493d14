"""etcd's JSON gateway, as far as an agent needs it, over the standard library's HTTP client.

Four requests are enough here; the libraries that are kept bring gRPC, or wrap these same requests.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

ANSWER_BYTES_MAX: Final = 16 << 20
"""The longest answer that is read."""
TRANSACTIONS_A_REQUEST: Final = 60
"""etcd takes 128 operations in one, by default, of all levels together."""


class EtcdAway(Exception):
    """No endpoint has answered in time; a write may have been done, or be done later."""


class KeyValue(NamedTuple):
    """A key of etcd. revision: its `mod_revision`; lease: 0 if it has none."""

    key: str
    value: bytes
    revision: int
    lease: int


class Put(NamedTuple):
    """Part of a transaction."""

    key: str
    value: bytes
    lease: int = 0


class Transaction(NamedTuple):
    """Puts and removals that are done if the keys of `unchanged` have these revisions, 0 for no key."""

    unchanged: Sequence[tuple[str, int]]
    puts: Sequence[Put] = ()
    removed: Sequence[str] = ()


class EtcdLogin(NamedTuple):
    """A user of etcd."""

    user: str
    password: str


class Etcd:
    """Several endpoints, HOST:PORT each; the one that answered last is asked first. Without `tls` by plain HTTP."""

    def __init__(
        self,
        endpoints: Sequence[str],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        login: EtcdLogin | None = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_s
        self._tls = tls
        self._login = login
        self._token = ""  # that etcd has given for the login; it ends some minutes after its last use
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def grant(self, ttl_s: int) -> int:
        """The id of a new lease. Raises EtcdAway, as all of these."""
        return int(self._call("lease/grant", {"TTL": ttl_s})["ID"])

    def keep_alive(self, lease: int) -> bool:
        """Whether the lease goes on."""
        answer = self._call("lease/keepalive", {"ID": lease})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def revoke(self, lease: int) -> None:
        self._call("lease/revoke", {"ID": lease})

    def status(self) -> dict[str, Any]:
        """The status of the member that answers."""
        return self._call("maintenance/status", {})

    def read(self, prefix: str) -> list[KeyValue]:
        """All keys that begin so, as of one revision."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        answer = self._call("kv/range", {"key": _packed(prefix), "range_end": _packed(end)})
        return [
            KeyValue(
                base64.b64decode(each["key"]).decode(),
                base64.b64decode(each.get("value", "")),
                int(each["mod_revision"]),
                int(each.get("lease", 0)),
            )
            for each in answer.get("kvs", [])
        ]

    def write(self, unchanged: Sequence[tuple[str, int]], puts: Sequence[Put], removed: Sequence[str] = ()) -> bool:
        """Whether the keys were written, as in a Transaction."""
        return bool(self._call("kv/txn", _body(Transaction(unchanged, puts, removed))).get("succeeded"))

    def write_all(self, transactions: Sequence[Transaction]) -> list[bool]:
        """Whether each was done; they are independent, and as few requests as can be."""
        done: list[bool] = []
        for start in range(0, len(transactions), TRANSACTIONS_A_REQUEST):
            part = transactions[start : start + TRANSACTIONS_A_REQUEST]
            answer = self._call("kv/txn", {"success": [{"requestTxn": _body(each)} for each in part]})
            done += [bool(each.get("response_txn", {}).get("succeeded")) for each in answer["responses"]]
        return done

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reason = "no endpoint"
        for _ in list(self._endpoints):
            try:
                return self._ask(path, body)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                reason = f"{self._endpoints[0]}: {error}"
                self.close()
                self._endpoints.append(self._endpoints.pop(0))
        raise EtcdAway(reason)

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        had_token = bool(self._token)
        status, text = self._post(path, body)
        if status == http.client.UNAUTHORIZED and had_token:
            self._token = ""
            status, text = self._post(path, body)
        if status != http.client.OK:
            self._token = ""
            raise ValueError(f"status {status}: {text[:200]!r}")
        answer = json.loads(text)
        if not isinstance(answer, dict):
            raise ValueError("the answer is not an object")
        return answer

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Logged in, if there is a login."""
        if self._login is not None and not self._token:
            status, text = self._send("auth/authenticate", {"name": self._login.user, "password": self._login.password})
            if status != http.client.OK:
                raise ValueError(f"the login as {self._login.user} fails with status {status}: {text[:200]!r}")
            self._token = json.loads(text)["token"]
        return self._send(path, body)

    def _send(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        headers = {"Content-Type": "application/json", **({"Authorization": self._token} if self._token else {})}
        self._connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
        response = self._connection.getresponse()
        return response.status, response.read(ANSWER_BYTES_MAX)

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._endpoints[0], timeout=self._timeout_s)
        return http.client.HTTPSConnection(self._endpoints[0], timeout=self._timeout_s, context=self._tls)


def _body(transaction: Transaction) -> dict[str, Any]:
    compare = [
        {"key": _packed(key), "target": "MOD", "result": "EQUAL", "modRevision": str(revision)}
        for key, revision in transaction.unchanged
    ]
    success: list[dict[str, Any]] = [
        {"requestPut": {"key": _packed(put.key), "value": _packed(put.value), "lease": put.lease}}
        for put in transaction.puts
    ]
    success += [{"requestDeleteRange": {"key": _packed(key)}} for key in transaction.removed]
    return {"compare": compare, "success": success}


def _packed(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
