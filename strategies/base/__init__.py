"""What every method shares: options, payloads, states, randomness, and the two halves' bases."""
