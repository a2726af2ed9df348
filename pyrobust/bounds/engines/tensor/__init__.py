"""The engine of torch operations, for models on a GPU."""
