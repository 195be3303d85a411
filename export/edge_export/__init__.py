"""Turn a checkpoint into a bundle."""
