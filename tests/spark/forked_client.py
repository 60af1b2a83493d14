"""What Spark starts as its Python (`forked_python.py`): `forked_client.py SOCKET -m MODULE…`."""

import marshal
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    content = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd()))
    socket.send_fds(connection, [len(content).to_bytes(8, "little")], [0, 1, 2])
    connection.sendall(content)
    ended = connection.recv(1)
sys.exit(ended[0] if ended else 1)
