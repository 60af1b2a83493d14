"""Durable consumers and groups of a stream: what was given to whom, and what is finished."""
