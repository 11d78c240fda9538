"""The region vision transformer: torch and timm, no Lightning."""
