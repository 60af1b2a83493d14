"""How replication stands: for commands, other nodes and metrics."""
