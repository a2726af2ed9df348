"""The store: run files, their schema, writer and reader, and exported logs."""
