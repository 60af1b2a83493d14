"""Removes the files of a broker of `tailrace.testing`; as a program, when all that held a pipe are gone.

It is run by its path, before the packages of the environment are looked for: it is there in a few milliseconds.
"""

from __future__ import annotations

import os
import sys

FOLDER_OF_MEMORY = "/dev/shm/tailrace-"
"""Before a node's id: the folder of its streams in memory, which the node removes itself unless it is killed."""


def remove(base: str) -> None:
    """Removes the folder of a server, and that of its streams in memory."""
    import json
    import shutil

    try:
        with open(f"{base}/data/node.json") as file:
            memory = FOLDER_OF_MEMORY + os.path.basename(json.load(file)["node_id"])
        if os.lstat(memory).st_uid == os.geteuid():
            shutil.rmtree(memory, ignore_errors=True)
    except (OSError, ValueError, LookupError, TypeError):
        pass  # it never started, or has no streams in memory
    shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    while os.read(0, 1):
        pass
    remove(sys.argv[1])
