"""The parent process: configuration, fork, restart, signals, readiness and the metrics endpoint."""
