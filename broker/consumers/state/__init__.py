"""Durable consumers as pure state: records in, decisions out. No clock, no file."""
