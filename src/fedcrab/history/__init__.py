"""The history: what the server stores while a model trains."""

from fedcrab.history.history import History
from fedcrab.history.selection import Compact, Every, Everything, Selective

__all__ = ["Compact", "Every", "Everything", "History", "Selective"]
