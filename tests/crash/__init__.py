"""Real processes that die without unwinding, and what the journal makes of it."""
