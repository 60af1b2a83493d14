"""The identity of a connection and its rights: decisions only, no sockets and no files."""
