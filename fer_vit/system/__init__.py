"""What fer-vit needs from the operating system."""
