"""The graph of a network: its nodes, its capture from a module, and its evaluation."""
