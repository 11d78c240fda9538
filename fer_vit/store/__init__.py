"""Models on disk and on the hub."""
