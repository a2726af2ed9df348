"""The documentation site: ``sphinx-build -W docs docs/_build``."""

import sys
from importlib import metadata
from pathlib import Path

import pyrobust

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "pyrobust"
release = metadata.version("pyrobust")
version = release
html_title = f"pyrobust {release}"
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "accessibility",
    "api_names",
    "command_pages",
    "contents",
    "docstrings",
    "outside_files",
    "link_check",
    "object_pages",
]
exclude_patterns = ["_build", "_ext", "_templates"]
root_doc = "index"
nitpicky = True
highlight_language = "text"
# Pages may show a few lines of a file, which its language alone does not parse.
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Markdown-like backticks in docstrings; a name of the API becomes a link (api_names).
default_role = "literal"
smartquotes_action = "D"  # dashes, but quotes as they are typed
autosummary_context = {"public_names": sorted(name for name in pyrobust.__all__ if not name.startswith("__"))}
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

templates_path = ["_templates"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_use_index = False  # the search finds names
html_domain_indices = False
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
