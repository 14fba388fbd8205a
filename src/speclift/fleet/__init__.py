"""Where arms run when one machine is not enough: the nodes of a Ray cluster (docs/fleet.md, ADR 0009)."""
