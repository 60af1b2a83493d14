"""Durable consumers at the connection of a member."""
