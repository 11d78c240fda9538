"""Training: all code that uses Lightning."""
