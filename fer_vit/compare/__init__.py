"""Statistics over predictions: persons under several conditions, or in several groups."""
