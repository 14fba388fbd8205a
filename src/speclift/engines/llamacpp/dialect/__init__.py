"""What llama.cpp's builds make of a command line: tables, rules, and the command of today."""
