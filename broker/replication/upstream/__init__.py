"""This node as a slave: the connections to its upstreams, and the streams that it fetches from them."""
