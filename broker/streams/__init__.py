"""What the owner of a stream does: append, sync, retain, deduplicate."""
