"""Command line verbs: one typed function each."""
