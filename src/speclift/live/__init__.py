"""Servers that are running: does speculation still pay there?"""
