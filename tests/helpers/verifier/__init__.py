"""What the verifier is held against: oracles written without it, and faults."""
