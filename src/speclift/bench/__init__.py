"""Servers that are up and take turns: what is prepared, searched, run and checked. Knows no verdict."""
