"""The commands that make runs; each module has the command for one kind of run, and is named after this kind."""
