"""The OpenAI-style wire form of requests, answers and errors, for whatever carries it."""
