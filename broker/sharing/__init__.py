"""Streams in memory that nodes share: each sends to the others what their subscribers want of it."""
