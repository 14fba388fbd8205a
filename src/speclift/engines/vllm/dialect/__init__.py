"""What vLLM's releases make of a command line: tables, rules, and the command of today."""
