"""Wires the layers for batch work: prepare a study, run it, judge it. The only composer besides watch."""
