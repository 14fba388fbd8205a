"""What to send, and when: parsing, selection, arrival times. Pure and seeded."""
