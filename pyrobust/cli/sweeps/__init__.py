"""The commands that make runs: each module has the command for the kind of run that it is named after."""
