"""Data sets: one file each, from the folder as its owners distribute it to manifest rows."""
