"""The broker in memory of the client's tests, for those of the command."""

from tests.client.conftest import group, groups, server

__all__ = ["group", "groups", "server"]
