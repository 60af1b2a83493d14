"""Durable consumers and groups of a stream: which member each message was given to, and which are finished."""
