"""Which configuration is best, and which cells have to be measured to know? Asks and is told; launches nothing."""
