"""`tailrace spark-zip`: the zip for `--py-files`, by which a cluster gets this package."""

from __future__ import annotations

from pathlib import Path

import click

from tailrace.cli.ending import OK, CommandError, require
from tailrace.cli.options import json_option
from tailrace.cli.tables import show_json
from tailrace.cli.values import FilePath

EPILOG = """\b
Examples:
  tailrace spark-zip
  tailrace rollup ./data /shared/rollups --master spark://host:7077 --py-files tailrace.zip

The nodes of the cluster still need NumPy, PyArrow, msgpack and google-crc32c.

Exit codes: 0 done, 1 FILE cannot be written, 2 wrong arguments.
"""


@click.command("spark-zip", epilog=EPILOG)
@click.argument("file", default="tailrace.zip", type=FilePath(dir_okay=False))
@json_option
def command(file: Path, as_json: bool) -> int:
    """Write the package as a zip for the nodes of a Spark cluster [default: tailrace.zip]."""
    require(("numpy", "pyarrow", "pyspark"), "spark")
    from tailrace.spark.package_zip import write_zip

    if file.suffix != ".zip":
        raise click.UsageError(f"FILE is {str(file)!r}; Spark takes it for Python only if its name ends with .zip")
    try:
        count = write_zip(file)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from None
    if as_json:
        show_json([{"file": str(file), "files": count}])
    else:
        click.echo(f"{file}: {count} files")
    return OK
