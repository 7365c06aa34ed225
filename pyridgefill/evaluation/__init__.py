"""Measures what fill costs in quality and saves in time, through the engine that serves."""
