"""vLLM: how it is launched, its flags and keys, what it prints."""
