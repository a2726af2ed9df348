"""Drop-in replacements for other libraries' APIs: a script written for them only needs another import."""
