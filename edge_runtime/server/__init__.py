"""The local HTTP endpoint: OpenAI's and Ollama's forms over the engine, and a page."""
