"""From text to maps: corpus, chunks, sums, ridge maps."""
