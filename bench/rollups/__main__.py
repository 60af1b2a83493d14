"""`python -m bench.rollups`."""

from bench.rollups.command import main

main(prog_name="python -m bench.rollups")
