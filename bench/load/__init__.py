"""The load generator: non-blocking sockets and epoll, prebuilt buffers, replies thrown away in the kernel.

Every loop in here has a deadline (`Deadline`), so that each wait ends.
"""
