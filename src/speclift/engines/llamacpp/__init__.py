"""llama.cpp: the embedded one and llama-server, launched and asked."""
