"""Models as files: GGUF, Hugging Face folders, tokenizers, the catalogue."""
