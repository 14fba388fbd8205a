"""speclift decides whether speculative decoding pays for a self-hosted LLM."""

__version__ = "0.1.0"

__all__ = ["__version__"]
