"""HTTP/1.1 and the answers of OpenAI-compatible servers: one reader of each, for whoever sends, asks or serves."""
