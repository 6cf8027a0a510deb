"""TFF says its types for its own checker, with which pyright disagrees."""

from typing import Any

def __getattr__(name: str) -> Any: ...
