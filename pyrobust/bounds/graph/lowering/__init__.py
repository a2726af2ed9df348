"""Translation of traced torch operators into graph nodes."""
