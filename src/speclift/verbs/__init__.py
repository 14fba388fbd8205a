"""One file per verb; the only composers."""
