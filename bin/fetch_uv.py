"""Gets uv from the package index that pip or uv is set to, for bin/environment.py.

Needs no pip: standard library only, Python 3.9 to 3.11. Which version it is, and the
hashes that its file must have, requirements-uv.txt says.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import html
import http.client
import io
import os
import re
import ssl
import stat
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile

PYPI = "https://pypi.org/simple"
_LINK = re.compile(r"""<a\b[^>]*\bhref\s*=\s*["']([^"']+)""", re.IGNORECASE)
_TIMEOUT = 30.0
_ATTEMPTS = 3


class FetchError(Exception):
    """Why uv cannot be had: one line, as an installer would say it."""


class Settings:
    """Where packages come from: what pip is set to, or uv's variables in its place.

    Attributes:
      index: The address of the index.
      extra: Those of more indexes.
      find_links: Folders and pages with files; pip's `--find-links`.
      no_index: Whether only these are to be used.
      certificates: The file with those to trust; None for the system's.
      proxy: The proxy's address; None for that of the environment.
      trusted_hosts: Hosts whose certificate is not checked.
    """

    def __init__(self, environ=os.environ):
        pip = _PipSettings(environ)
        self.index = (
            environ.get("UV_DEFAULT_INDEX")
            or environ.get("UV_INDEX_URL")
            or pip.get("index-url")
            or PYPI
        )
        self.extra = pip.get("extra-index-url").split()
        self.find_links = pip.get("find-links").split()
        self.no_index = pip.get("no-index").lower() in ("1", "true", "yes", "on")
        self.certificates = environ.get("SSL_CERT_FILE") or pip.get("cert") or None
        self.proxy = pip.get("proxy") or None
        self.trusted_hosts = pip.get("trusted-host").split()

    def for_uv(self, environ) -> tuple[dict, list[str]]:
        """The same for uv, which does not read what pip is set to.

        Returns:
          The environment variables to add to `environ`, and options.
        """
        variables = {
            "UV_DEFAULT_INDEX": self.index,
            "UV_EXTRA_INDEX_URL": " ".join(self.extra),
            "UV_FIND_LINKS": ",".join(self.find_links),
            "UV_INSECURE_HOST": " ".join(self.trusted_hosts),
            "SSL_CERT_FILE": self.certificates,
            "ALL_PROXY": self.proxy,
        }
        add = {
            name: value
            for name, value in variables.items()
            if value and value != PYPI and not environ.get(name)
        }
        # As pip does: the version and the hash decide, not the order of the indexes.
        options = ["--index-strategy=unsafe-best-match"]
        return add, options + ["--no-index"] * self.no_index


class _PipSettings:
    """pip's settings: environment variables, then its files."""

    def __init__(self, environ):
        self._environ = environ
        self._files = configparser.RawConfigParser()
        home = os.path.expanduser("~")
        config = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
        shared = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        paths = [os.path.join(each, "pip", "pip.conf") for each in shared.split(":")]
        paths += [
            "/etc/pip.conf",
            os.path.join(home, ".pip", "pip.conf"),
            os.path.join(config, "pip", "pip.conf"),
            os.path.join(sys.prefix, "pip.conf"),
            environ.get("PIP_CONFIG_FILE", ""),
        ]
        if environ.get("PIP_CONFIG_FILE") == os.devnull:
            paths = []  # As for pip: none at all.
        for path in paths:
            try:
                self._files.read(path, encoding="utf-8")
            except (configparser.Error, UnicodeDecodeError) as error:
                text = " ".join(str(error).split())
                raise FetchError(f"error: {path} cannot be read: {text}") from error

    def get(self, name: str) -> str:
        value = self._environ.get("PIP_" + name.upper().replace("-", "_"))
        for section in ("install", "global"):
            if value is None:
                value = self._files.get(section, name, fallback=None)
        return value or ""


def fetch(lock: str, target: str) -> None:
    """Gets uv's program.

    Args:
      lock: The path of requirements-uv.txt.
      target: Where it is to be.

    Raises:
      FetchError: If it cannot be had.
      OSError: If it cannot be written.
    """
    with open(lock, encoding="utf-8") as file:
        text = file.read()
    named = re.search(r"^uv==(\S+)", text, re.MULTILINE)
    if named is None:
        raise FetchError(f"error: {lock} names no version of uv; restore it with git")
    version = named.group(1)
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))
    wheel = re.compile(rf"uv-{re.escape(version)}-py3-none-manylinux\S*x86_64\S*\.whl")
    content = _download(wheel, Settings())
    if hashlib.sha256(content).hexdigest() not in hashes:
        raise FetchError(f"error: hash mismatch for uv {version}")
    new = target + ".new"
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        program = archive.read(f"uv-{version}.data/scripts/uv")
    with open(new, "wb") as file:
        file.write(program)
    os.chmod(new, stat.S_IMODE(os.stat(new).st_mode) | 0o111)
    os.replace(new, target)


def _download(name: re.Pattern, settings: Settings) -> bytes:
    """The content of the first file of that name, wherever it is offered."""
    folders = list(settings.find_links)
    if not settings.no_index:
        indexes = [settings.index, *settings.extra]
        folders = [f"{each.rstrip('/')}/uv/" for each in indexes] + folders
    problem = None
    for folder in folders:
        try:
            for link in _links(folder, settings):
                path = urllib.parse.urlsplit(link).path
                if name.fullmatch(urllib.parse.unquote(path).rpartition("/")[2]):
                    return _read(link, settings)
        except (OSError, http.client.HTTPException) as error:
            problem = problem or f"{_without_password(folder)}: {error}"
    raise FetchError(
        f"error: failed to fetch uv ({problem or 'no index has this version of it'})"
    )


def _links(folder: str, settings: Settings) -> list[str]:
    """The addresses of the files that a page, or a local folder, offers."""
    if "://" not in folder:
        folder = "file://" + urllib.request.pathname2url(os.path.abspath(folder))
    address = urllib.parse.urlsplit(folder)
    if address.scheme == "file":
        path = urllib.request.url2pathname(address.path)
        if os.path.isdir(path):
            folder = folder.rstrip("/") + "/"
            if not os.path.exists(os.path.join(path, "index.html")):
                return [urllib.parse.urljoin(folder, name) for name in os.listdir(path)]
            folder += "index.html"
    page = _read(folder, settings).decode("utf-8", "replace")
    found = (html.unescape(link) for link in _LINK.findall(page))
    return [urllib.parse.urljoin(folder, link) for link in found]


def _read(url: str, settings: Settings) -> bytes:
    """What is at an address; tries more than once."""
    address = urllib.parse.urlsplit(url)
    headers = {"Accept": "text/html, */*", "User-Agent": "tff_reg"}
    if address.username is not None:
        name, password = map(
            urllib.parse.unquote, (address.username, address.password or "")
        )
        token = base64.b64encode(f"{name}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {token}"
        url = _without_password(url)
    context = ssl.create_default_context(cafile=settings.certificates)
    if settings.trusted_hosts and (
        {address.hostname, f"{address.hostname}:{address.port}"}
        & set(settings.trusted_hosts)
    ):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.HTTPSHandler(context=context)
    ]
    if settings.proxy:
        proxies = {"http": settings.proxy, "https": settings.proxy}
        handlers.append(urllib.request.ProxyHandler(proxies))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url, headers=headers)
    for attempt in range(_ATTEMPTS):
        try:
            with opener.open(request, timeout=_TIMEOUT) as answer:
                return answer.read()
        except (OSError, http.client.HTTPException) as error:
            is_final = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if is_final or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable")


def _without_password(url: str) -> str:
    """The address without a user's name and password."""
    address = urllib.parse.urlsplit(url)
    place = address.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit(address._replace(netloc=place))
