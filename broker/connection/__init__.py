"""Connections: accepting them, their protocols, and moving them to another worker."""
