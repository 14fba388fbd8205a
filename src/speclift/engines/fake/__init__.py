"""The fake engine: a server with known truth, for tests and demonstrations."""
