"""How Sphinx makes the site; `bin/docs` runs it."""

import pathlib
import re
import sys
import time

BEGAN = time.monotonic()
HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

# First, so that TensorFlow starts without its messages.
import tff_reg  # noqa: E402, I001
from docs import from_code, reference  # noqa: E402
from docutils import nodes  # noqa: E402
from latex2mathml import converter  # noqa: E402

project = "tff_reg"
author = "The authors of tff_reg"
version = release = tff_reg.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = [
    "site",
    "generated/alternatives.md",
    "generated/api/index.md",
    "generated/by_role.md",
    "generated/roles.md",
]
myst_enable_extensions = [
    "amsmath",
    "colon_fence",
    "deflist",
    "dollarmath",
    "substitution",
]
myst_substitutions = {"version": tff_reg.__version__}
myst_heading_anchors = 3
nb_execution_mode = "off"  # The notebooks keep their outputs, which tests check.
nb_merge_streams = True

html_theme = "furo"
html_math_renderer = "mathml"
html_title = "tff_reg"
if tff_reg.REPOSITORY:
    html_theme_options = {
        "source_repository": tff_reg.REPOSITORY,
        "source_branch": "main",
        "source_directory": "docs/",
    }
html_static_path = ["static"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_show_copyright = False
highlight_language = "text"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
# Quotes and dots; two hyphens are a flag's.
smartquotes_action = "qe"

# The reference. Types are written as in the source (tf.Tensor, not where TensorFlow
# keeps the class), without a module's name where the name says enough.
add_module_names = False
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_type_aliases = {
    name: name
    for file in (ROOT / "tff_reg").rglob("*.py")
    for name in re.findall(r"\b(?:tf|tff|np)(?:\.\w+)+", file.read_text("utf-8"))
}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_use_rtype = False
default_role = "code"

linkcheck_timeout = 20
linkcheck_ignore = [
    # Publishers that answer programs with 403.
    r"https://doi\.org/.*",
]


def write_inline(translator, node):
    """Writes a formula as MathML, which browsers show without a script."""
    translator.body.append(converter.convert(node.astext()))
    raise nodes.SkipNode


def write_block(translator, node):
    """The same of a formula with lines of its own."""
    formula = converter.convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode


def mend_for_readers(app, page, template, context, doctree):
    """Mends what readers stumble over.

    For screen readers, the sidebar's captions, which are headings, get a level, and the
    arguments of a function are no list of definitions.
    """
    body = re.sub(
        r'<dl>\n(<dd><em class="sig-param">.*?)</dl>',
        lambda found: re.sub(
            "<(/?)dd>", r"<\1span>", f'<span class="arguments">{found[1]}</span>'
        ),
        context.get("body", ""),
        flags=re.DOTALL,
    )
    # Between an argument and its description.
    body = re.sub(r"(</strong>|\)) -- ", r"\1 – ", body)
    # No line breaks within a flag's name, or around the sign of a deviation.
    body = re.sub(r"--\w+(?![^<>]*>)", r'<span class="flag">\g<0></span>', body)
    context["body"] = body.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )


def say(what):
    """Prints what the build does now, and after how many seconds."""
    print(f"{time.monotonic() - BEGAN:4.0f} s  {what}", flush=True)


def setup(app):
    """Has the pages that follow from the code written before Sphinx looks for pages."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    say("writes the pages that follow from the code")
    from_code.write(HERE / "generated")
    app.connect("builder-inited", lambda _: say("reads the pages"))
    app.connect("env-updated", lambda *_: say("writes the site"))
    # After Furo, which makes the tree at 500.
    app.connect("html-page-context", mend_for_readers, priority=900)
    # Before napoleon, which comes at 500.
    app.connect("autodoc-process-docstring", reference.to_rst, priority=400)
