"""Records with known truth, drawn from a seed. Pure: nothing is launched."""
