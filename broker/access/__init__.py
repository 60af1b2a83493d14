"""Who a connection is, and what it may do: decisions only, no socket and no file."""
