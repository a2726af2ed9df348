"""Drop-in replacements for other libraries' APIs: a script written for them runs with its import changed."""
