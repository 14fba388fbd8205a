"""The gate under fire: traffic that breaks servers, and which faults its answers show."""
