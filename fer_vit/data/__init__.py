"""The manifest, samples, augmentation and loading."""
