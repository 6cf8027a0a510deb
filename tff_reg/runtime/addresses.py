"""The addresses of workers: host:port, several of them with commas between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union


def parse_port(text: str) -> int:
    """Reads a port number.

    Raises:
        ValueError: If it is not a whole number from 1 to 65535.
    """
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ValueError(
            f"a port must be a whole number from 1 to 65535, found {text!r}."
        )
    return int(text)


def parse(workers: Union[str, Sequence[str]]) -> list[str]:
    """Splits and checks a list of addresses.

    Args:
        workers: `"a:8000,b:8000"`, or `["a:8000", "b:8000"]`. IPv6 addresses need
            brackets: `"[::1]:8000"`.

    Returns:
        Addresses such as `"a:8000"`.

    Raises:
        ValueError: If one is not host:port, or occurs twice, or there is none.
    """
    listed = workers.split(",") if isinstance(workers, str) else list(workers)
    addresses = []
    for entry in listed:
        text = str(entry).strip()
        host, _, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        inner = host[1:-1] if bracketed else host
        if not inner or set(inner) & set("[]/@ ") or (":" in inner and not bracketed):
            raise ValueError(
                f"a worker must be given as host:port, like node1:8000, found {text!r}."
            )
        try:
            addresses.append(f"{host}:{parse_port(port)}")
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
    if not addresses:
        raise ValueError("the list of workers is empty; name at least one host:port.")
    twice = sorted({a for a in addresses if addresses.count(a) > 1})
    if twice:
        raise ValueError(f"the worker {', '.join(twice)} is named twice.")
    return addresses
