"""The store: run files, their writer, reader, schema and logs."""
