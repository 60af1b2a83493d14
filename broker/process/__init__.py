"""What each worker process has beside its work: settings, control channel, metrics, timers."""
