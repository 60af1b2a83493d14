"""Streams that are copied from node to node."""
