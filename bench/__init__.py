"""Comparison of tailrace with NATS, JetStream, Redis Streams and mosquitto, in one run on one load generator.

`python -m bench --help` shows how to run it; docs/benchmarks.md explains each row. The generator is in `load`,
what differs between the brokers in `peers`, the rows in `rows`.
"""
