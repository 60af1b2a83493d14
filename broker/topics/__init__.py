"""Topics: which filters match a topic."""
