"""Texts to vectors: sentence embedding models, batched by length."""
