"""From a connection to the owner of a stream: batches, routes, and the links between workers."""
