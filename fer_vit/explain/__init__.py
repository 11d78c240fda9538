"""Recording and reading what the model attended to."""
