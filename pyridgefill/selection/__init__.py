"""Which rows are worth running through all layers, and which setting is worth recommending."""
