"""The manifest, samples, samplers and augmentation."""
