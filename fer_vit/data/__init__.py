"""The manifest and its shards, samples, samplers and augmentation."""
