"""llama.cpp's n-gram drafters, as it does them, on logs."""
