"""`python -m pyridgefill` is the command `pyridgefill`."""

from pyridgefill.cli.main import main

main()
