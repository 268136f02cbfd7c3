"""Who holds which data, who takes part in a round, and whose reply arrives."""
