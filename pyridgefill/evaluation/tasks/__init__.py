"""What is measured: one task in each file."""
