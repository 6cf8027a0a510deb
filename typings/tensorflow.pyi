"""TensorFlow has no types; the stubs that pyright brings know a part of it, wrongly."""

from typing import Any

def __getattr__(name: str) -> Any: ...
