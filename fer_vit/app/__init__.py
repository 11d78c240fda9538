"""The page of `fer-vit app`: what it does, and how it is served."""
