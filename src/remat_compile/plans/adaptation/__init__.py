"""A ladder of plans for one model and budget."""
