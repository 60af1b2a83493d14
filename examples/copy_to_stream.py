# %% [markdown]
# A live query that publishes its rows to a stream, each once: python examples/copy_to_stream.py DATA [HOST:PORT]

# %% Some orders, as JSON.
import json
import sys

import tailrace
from tailrace.spark.session import local_session

data, address = sys.argv[1], (*sys.argv[2:], "127.0.0.1:5050")[0]
with tailrace.connect(address) as client:
    orders = [{"customer": f"c{number % 7}", "euro": number} for number in range(200)]
    client.publish_many("orders.all", [json.dumps(each).encode() for each in orders])

# %% The large ones go to a stream of their own, with the customer as their key. Run it again: only new ones are added.
session = local_session("copy")
live = session.readStream.format("tailrace").option("streams", "orders.all").option("payload", "json")
rows = live.option("payloadSchema", "customer string, euro bigint").load(data).where("payload.euro >= 150")
query = rows.selectExpr("to_json(payload) AS payload", "payload.customer AS key").writeStream.format("tailrace")
query = query.option("brokers", address).option("stream", "orders.large").trigger(availableNow=True)
query.option("checkpointLocation", f"{data}/../orders.large.checkpoint").start().awaitTermination()

with tailrace.connect(address) as client:
    print(len(list(client.subscribe("orders.large", end=tailrace.NOW))), "large orders")
