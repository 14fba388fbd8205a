"""The nouns every layer speaks: frozen values without I/O. Imports nothing else of the package."""
