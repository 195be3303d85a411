"""Storing weights in fewer bits."""
