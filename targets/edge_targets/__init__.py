"""Device profiles as data."""
