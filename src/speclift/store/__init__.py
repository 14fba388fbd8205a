"""Everything on disk: studies, prompt files, models."""
