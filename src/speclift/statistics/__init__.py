"""Records to estimates. Pure: no I/O, no verdict."""
