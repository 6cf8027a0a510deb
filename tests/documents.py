"""The documentation as tests read it: the README and the site's pages."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = ROOT / "docs" / "pages"


def files():
    """The README and the site's pages that are written by hand."""
    return [README, ROOT / "docs" / "index.md", *sorted(PAGES.rglob("*.md"))]


def text():
    """All of it."""
    return "\n".join(file.read_text("utf-8") for file in files())


def blocks(file, language=""):
    """The fenced blocks of a language in a file."""
    return re.findall(rf"(?m)^```{language}\n((?s:.*?))^```$", file.read_text("utf-8"))


def commands(file):
    """The commands that a file shows: lines of its plain blocks."""
    lines = "\n".join(blocks(file)).replace("\\\n", " ").splitlines()
    prompt = re.compile(r"^(?:\w+\$ )?((?:bin/\w+|tff-reg|curl|(?:uv )?pip)\b.*)$")
    return [match.group(1) for line in lines if (match := prompt.match(line))]
