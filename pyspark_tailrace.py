"""Where Spark looks for `format("tailrace")` by itself: modules called pyspark_* that have a DefaultSource."""

from tailrace.spark.datasource import TailraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
