"""Judges a serving command: every flag and key judged for one engine version, and today's spelling."""
