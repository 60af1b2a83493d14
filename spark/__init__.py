"""Spark over the broker's streams: a data source for queries of the past and for live ones, and the nightly rollups.

docs/spark.md is the manual. Only `spark.session`, `spark.datasource`, `spark.batch`, `spark.live` and of the
rollups `spark.rollup.spark_engine` import pyspark: planning, reading and rolling up can
be tested, and used, without a JVM.
"""
