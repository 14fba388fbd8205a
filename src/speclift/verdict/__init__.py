"""Estimates to a verdict, by named rules. Pure."""
