"""Orders of a stream into SQLite, each once, however it is stopped: python examples/orders.py STREAM FILE [HOST:PORT]

Several of these may run beside each other, on one FILE: each order goes to one of them, those of one customer in order.
"""

import json
import sqlite3
import sys

import tailrace


def main(stream: str, file: str, address: str = "127.0.0.1:5050") -> None:
    database = sqlite3.connect(file, timeout=30)
    database.execute("CREATE TABLE IF NOT EXISTS orders (customer TEXT, cents INTEGER)")
    once = tailrace.Once(database)
    with tailrace.connect(address) as client, client.consumer(stream, "billing") as consumer:
        for message in consumer:
            with once(message) as is_new:  # one transaction: the order, and that it is done
                if is_new:
                    order = json.loads(message.payload)
                    database.execute("INSERT INTO orders VALUES (:customer, :cents)", order)
            print(message.seq, message.key, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
