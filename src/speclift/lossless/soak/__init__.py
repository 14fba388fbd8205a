"""The gate under load: traffic that breaks servers, and which faults its answers show."""
