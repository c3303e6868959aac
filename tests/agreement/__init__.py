"""The contract in scenarios, through the public API alone, the same for every façade."""
