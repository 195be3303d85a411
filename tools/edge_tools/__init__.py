"""Measuring and comparing."""
