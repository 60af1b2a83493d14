# %% [markdown]
# Sensor readings published as JSON, and their hourly means by plain SQL: python examples/sensors.py DATA [HOST:PORT]

# %% A day of readings, one in ten minutes for each device. Now and then a device sends something else.
import json
import sys
from datetime import UTC, datetime, timedelta

import tailrace
from tailrace.spark.session import local_session

data, address = sys.argv[1], (*sys.argv[2:], "127.0.0.1:5050")[0]
begin = datetime(2026, 11, 20, tzinfo=UTC)
with tailrace.connect(address) as client:
    for coldest, device in enumerate(("garden", "attic", "cellar")):
        readings = [
            {"device": device, "at": (begin + timedelta(minutes=10 * i)).isoformat(), "celsius": coldest * 5 + i / 10}
            for i in range(144)
        ]
        client.publish_many(f"sensors.{device}", [*(json.dumps(each).encode() for each in readings), b"battery low"])

# %% The same messages as a table: the columns of the payload are named once.
session = local_session("sensors")
source = session.read.format("tailrace").option("streams", "sensors.*").option("payload", "json")
table = source.option("payloadSchema", "device string, at timestamp, celsius double").load(data)
table.createOrReplaceTempView("readings")
hourly = "SELECT payload.device, hour(payload.at) AS hour, avg(payload.celsius) AS celsius, count(*) AS readings"
session.sql(f"{hourly} FROM readings WHERE _corrupt IS NULL GROUP BY ALL ORDER BY ALL").show(100, truncate=False)
session.sql("SELECT stream, seq, string(_corrupt) FROM readings WHERE _corrupt IS NOT NULL").show(truncate=False)
