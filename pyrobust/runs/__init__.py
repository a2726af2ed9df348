"""Run files: their schema, writer and reader, and the logs exported from them."""
