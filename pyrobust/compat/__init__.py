"""Faces with other libraries' signatures: a script written for them runs with its import changed."""
