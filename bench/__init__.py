"""Comparison of tailrace with NATS, JetStream, Redis Streams and mosquitto, in one run on one load generator.

`python -m bench --help` says how to run it; docs/benchmarks.md says what each row means. The generator is in `load`,
what differs between the brokers in `peers`, what is measured in `rows`.
"""
