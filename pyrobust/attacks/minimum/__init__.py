"""Minimum-norm attacks: the nearest adversarial example, regardless of epsilon."""
