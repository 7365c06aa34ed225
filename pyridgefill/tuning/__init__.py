"""Finds settings for a model: what each split, budget, tail and kind of map costs in quality and saves in time."""
