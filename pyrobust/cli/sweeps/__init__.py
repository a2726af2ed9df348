"""The commands that make runs: in each module the command of the kind of run of its name."""
