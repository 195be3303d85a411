"""Device profiles as data, and the loader that checks them."""
