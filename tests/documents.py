"""The documentation as tests read it: the README and the site's pages."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = ROOT / "docs" / "pages"
# What a line that is a command begins with; others are what commands print.
_PROGRAMS = r"xargs |sbatch |bin/|tff-reg |curl |uv |pip |export |[A-Z_]+=\S+ "


def files():
    """What is written by hand: README, CONTRIBUTING and the site's pages."""
    first = [README, ROOT / "CONTRIBUTING.md", ROOT / "docs" / "index.md"]
    return [*first, *sorted(PAGES.rglob("*.md"))]


def text():
    """All of it."""
    return "\n".join(file.read_text("utf-8") for file in files())


def install_tutorials_method(folder):
    """Installs the package of "Add a method in 40 lines", as pip would."""
    known = folder / "anchors-0.1.dist-info"
    known.mkdir(parents=True)
    module = ROOT / "docs" / "examples" / "anchors" / "anchors.py"
    (folder / module.name).write_text(module.read_text("utf-8"), "utf-8")
    metadata = "Metadata-Version: 2.1\nName: anchors\nVersion: 0.1\n"
    (known / "METADATA").write_text(metadata)
    points = "[tff_reg.methods]\nanchor = anchors:Anchor\n"
    (known / "entry_points.txt").write_text(points)


def _fences(file):
    """The fenced blocks of a file: what stands behind the fence, and the text."""
    return re.findall(r"(?ms)^```([^\n]*)\n(.*?)^```$", file.read_text("utf-8"))


def blocks(file):
    """The plain blocks of a file: commands, and what they print."""
    return [text for kind, text in _fences(file) if not kind]


def programs(file):
    """The blocks of Python of a file, those that it includes from other files too."""
    found = []
    for kind, text in _fences(file):
        if kind == "python":
            found.append(text)
        elif kind.startswith("{literalinclude}") and ":language: python" in text:
            included = (file.parent / kind.split()[1]).read_text("utf-8")
            begin = re.search(r"(?m)^:start-at: \"?(.*?)\"?$", text)
            end = re.search(r"(?m)^:end-at: \"?(.*?)\"?$", text)
            first = included.index(begin[1]) if begin else 0
            after = included.index("\n", included.index(end[1], first)) if end else None
            found.append(included[first:after])
    return found


def commands(file):
    """The commands that a file shows, without prompts and remarks."""
    found = []
    for block in blocks(file):
        lines = re.sub(r" *\\\n *", " ", block).splitlines()
        lines = [re.sub(r"^\w+\$ ", "", line).split(" #")[0].strip() for line in lines]
        if re.match(_PROGRAMS, lines[0]):
            assert all(re.match(_PROGRAMS, line) for line in lines), (file, block)
            found += lines
    return found
