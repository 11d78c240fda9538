"""Training: everything that knows Lightning."""
