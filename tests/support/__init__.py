"""Helpers that tests of several files share."""
