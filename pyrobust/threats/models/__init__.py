"""Models that threats are run against: endpoints, transformers models, functions."""

from pyrobust.threats.models.answer import Answer, CallError, TextModel
from pyrobust.threats.models.endpoint import ChatEndpoint
from pyrobust.threats.models.function import FunctionModel
from pyrobust.threats.models.local import TransformersPipeline
from pyrobust.threats.models.spec import text_model

__all__ = ["Answer", "CallError", "ChatEndpoint", "FunctionModel", "TextModel", "TransformersPipeline", "text_model"]
