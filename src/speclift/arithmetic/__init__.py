"""The mathematics of acceptance and cost that planning, tuning and simulation share. Pure."""
