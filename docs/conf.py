"""The site, by Sphinx with the book theme that Orbax, Grain and MaxText have; `make docs` builds it.

Pages are Markdown (MyST), and so are docstrings, as Keras's are: `markdown_to_rst` translates them. Beside the
pages it has `llms.txt` (https://llmstxt.org), a list of them for programs that read.
"""

import re
import textwrap
from pathlib import Path

import keras_tpu_ext

project = "keras_tpu_ext"
copyright = "the keras_tpu_ext authors, Apache-2.0"
release = version = keras_tpu_ext.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["config.cache"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 80
napoleon_use_rtype = False
napoleon_custom_sections = [("Call arguments", "params_style")]

html_theme = "sphinx_book_theme"
html_title = "keras_tpu_ext"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_navbar_depth": 1,
    "home_page_in_toc": False,
    "use_download_button": False,
    "navbar_persistent": [],  # the sidebar has the search already
}
copybutton_exclude = ".linenos, .gp"
linkcheck_anchors = False


def markdown_to_rst(app, what, name, obj, options, lines):
    """Write the Markdown of a docstring, its code blocks and code spans, as reStructuredText."""
    text = "\n".join(lines)
    # Odd parts stand between three backticks: a word for the language, and the code.
    parts = re.split(
        r"^( *)```(\w*)\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL
    )
    translated = ""
    for prose, indent, language, code in zip(
        parts[::4], *([*parts[i::4], ""] for i in (1, 2, 3)), strict=True
    ):
        translated += re.sub(r"`([^`]+)`", r"``\1``\\ ", prose).replace("|", r"\|")
        if code:
            block = textwrap.indent(textwrap.dedent(code), f"{indent}    ")
            translated += f"{indent}.. code-block:: {language or 'text'}\n\n{block}"
    lines[:] = translated.split("\n")


def skip_what_keras_calls(app, what, name, obj, skip, options):
    """Leave out of a page what Keras calls and a user never does."""
    called = r"on_|(begin|end)_fit$|set_params$|build$|call$|compute_output_|get_config$|from_config$"
    return True if re.match(called, name) else None


def llms_txt(docs):
    """Return `llms.txt`: what this package is, and each page in the order of the sidebar with its first sentence."""
    index = (docs / "index.md").read_text(encoding="utf-8")
    about = (
        (docs.parent / "README.md")
        .read_text(encoding="utf-8")
        .partition("begins -->\n")[2]
        .partition("\n\n")[0]
    )
    lines = ["# keras_tpu_ext", "", "> " + " ".join(about.replace("**", "").split())]
    for block in re.findall(
        r"^```{toctree}\n(.*?)^```", index, re.MULTILINE | re.DOTALL
    ):
        caption = re.search(r":caption: (.*)", block)
        lines += ["", f"## {caption[1]}", ""]
        for line in block.splitlines():
            if line and not line.startswith(":"):
                page = re.sub(r".*<(.*)>", r"\1", line)
                lines.append(
                    _llms_line(page, (docs / f"{page}.md").read_text(encoding="utf-8"))
                )
    return "\n".join(lines) + "\n"


def _llms_line(page, text):
    """Return the link to a page, with its first sentence if it begins with one."""
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    text = text[title.end() :].lstrip() if title else ""
    prose = (
        ""
        if text.startswith(("```", "|", "<!--", "#"))
        else " ".join(text.partition("\n\n")[0].split())
    )
    sentence = re.match(r"(.*?[.?])(?: |$)", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", prose))
    name = title[1] if title else page.capitalize()
    return f"- [{name}]({page}.html)" + (
        f": {sentence[1].replace('**', '')}" if sentence else ""
    )


def write_llms_txt(app, error):
    """Put `llms.txt` beside the pages."""
    if error is None:
        (Path(app.outdir) / "llms.txt").write_text(
            llms_txt(Path(app.srcdir)), encoding="utf-8"
        )


def setup(app):
    """Connect the functions above; the first before napoleon, which reads what it writes."""
    app.connect("build-finished", write_llms_txt)
    app.connect("autodoc-process-docstring", markdown_to_rst, priority=100)
    app.connect("autodoc-skip-member", skip_what_keras_calls)
