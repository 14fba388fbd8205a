"""What could run, before running it. Pure."""
