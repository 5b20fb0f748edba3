"""What the server keeps while a model trains."""

from fedcrab.history.selection import Every, Everything, Selective
from fedcrab.history.store import History

__all__ = ["Every", "Everything", "History", "Selective"]
