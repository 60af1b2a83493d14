"""The `tailrace` command, one module a subcommand."""
