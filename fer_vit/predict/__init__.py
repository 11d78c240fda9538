"""A trained model at work: images in, faces with their expressions out."""
