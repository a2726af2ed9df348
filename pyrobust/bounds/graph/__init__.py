"""The graph of a network: its nodes, how a module becomes one, and its evaluation."""
