"""`python -m bench`."""

from bench.command import main

main(prog_name="python -m bench")
