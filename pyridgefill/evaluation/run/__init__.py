"""How a prompt is run, and where results are kept."""
