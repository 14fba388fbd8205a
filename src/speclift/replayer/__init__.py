"""What an n-gram drafter would have had accepted on answers that were logged. Pure: token ids in, counts out."""
