"""The public face of the broker: the `tailrace` command."""
