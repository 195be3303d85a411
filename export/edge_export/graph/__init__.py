"""Building the decoder graph."""
