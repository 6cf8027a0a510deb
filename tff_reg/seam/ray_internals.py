"""All uses of inner parts of Ray 2.51 to 2.60, which have no public API."""

from __future__ import annotations

import importlib
from typing import Any


def set_attribute(module: str, name: str, value: Any) -> Any:
    """Sets an attribute of a module of `ray._private`; returns its old value."""
    inner: Any = importlib.import_module(f"ray._private.{module}")
    before = getattr(inner, name)
    setattr(inner, name, value)
    return before
