"""The commands of `pyridgefill`, see `pyridgefill.__main__`."""
