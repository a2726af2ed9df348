"""Models that threats are run against: endpoints, transformers pipelines, functions."""

from pyrobust.threats.models.answer import Answer, CallError, TextModel

__all__ = ["Answer", "CallError", "TextModel"]
