"""This node as an upstream: the nodes that follow it, and how far they hold its streams."""
