"""This node as a slave: the connections to its upstreams, and what it fetches from them."""
