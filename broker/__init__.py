"""One worker process: the epoll loop, connections, cursors, routing and links to siblings."""
