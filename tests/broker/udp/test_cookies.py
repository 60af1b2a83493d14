"""Cookies: of one address, for a minute or two, by nobody else."""

from __future__ import annotations

from tailrace.broker.udp.cookies import PERIOD_S, Cookies
from tailrace.protocol.datagrams import COOKIE_CHARACTERS


def test_a_cookie_is_of_its_address_and_time() -> None:
    cookies, now_s = Cookies(), 10 * PERIOD_S + 1.0
    one, other = b"a" * 28, b"b" * 28
    cookie = cookies.make(one, now_s).encode()
    assert len(cookie) == COOKIE_CHARACTERS and cookie != cookies.make(other, now_s).encode()
    assert cookies.is_valid(one, cookie, now_s) and cookies.is_valid(one, cookie, now_s + PERIOD_S)
    assert not cookies.is_valid(one, cookie, now_s + 2 * PERIOD_S)
    assert not cookies.is_valid(one, cookie, now_s - 2 * PERIOD_S)
    for wrong in (b"", cookie[:-1], cookie.upper() + b"x", b"\xff" * COOKIE_CHARACTERS):
        assert not cookies.is_valid(one, wrong, now_s)
    assert not cookies.is_valid(other, cookie, now_s) and not Cookies().is_valid(one, cookie, now_s)
