"""Spark over the broker's streams: a data source for queries of the past and for live ones, and the nightly rollups.

docs/spark.md is the manual. Only `spark.session`, `spark.datasource`, `spark.batch` and `spark.live` import pyspark, so
that planning and reading can be tested, and used, without a JVM.
"""
