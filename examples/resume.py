"""A reader that resumes after any stop: python examples/resume.py STREAM FILE [HOST:PORT]

FILE holds the seq of the next message. Messages that were handled and not yet noted there are handled again.
"""

import sys
from pathlib import Path

import tailrace


def main(stream: str, file: Path, address: str = "127.0.0.1:5050") -> None:
    next_seq = int(file.read_text()) if file.exists() else 0
    with tailrace.connect(address) as client:
        for batch in client.subscribe(stream, tailrace.Seq(next_seq), on_trimmed="skip", wait=True).batches():
            for message in batch:
                print(message.seq, message.payload.decode(errors="replace"), flush=True)
            file.write_text(str(batch[-1].seq + 1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:4])
