"""This node as an upstream: the nodes that follow it, and what they hold."""
