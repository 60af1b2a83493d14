"""The client without clock or socket: time and bytes are passed in."""
