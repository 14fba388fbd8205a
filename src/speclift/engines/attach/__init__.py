"""Servers that somebody else started."""
