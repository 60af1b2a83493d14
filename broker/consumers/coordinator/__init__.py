"""Durable consumers at the owner of their stream."""
