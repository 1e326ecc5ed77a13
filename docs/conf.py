"""Sphinx configuration. `make docs` builds the pages strictly: every warning is an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(Path(__file__).parent)]

# Examples and statements are timed in seconds only if BLAS does not fight itself for the cores.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["COLUMNS"] = "80"  # width of captured command-line help
os.environ["NO_COLOR"] = "1"
os.environ.setdefault("MPLBACKEND", "agg")

import overt  # noqa: E402

project = "overt"
author = "The overt developers"
version = release = overt.__version__
html_title = f"overt {release}"
html_short_title = "overt"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "elsewhere",
    "mathml",
    "picture",
    "plaintext",
    "reference",
    "registry",
    "source",
]
exclude_patterns = ["_build", "_ext", "examples", "lectures"]

# Formulas are written in TeX between dollars and become MathML while the pages are built, so the
# site needs neither scripts from elsewhere nor a TeX installation.
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

default_role = "py:obj"
autosummary_generate = False  # docs/_ext/reference.py writes the pages
toc_object_entries_show_parents = "hide"
# What scikit-learn adds to every estimator is described there.
autodoc_default_options = {
    "exclude-members": "set_fit_request, set_partial_fit_request, set_predict_request, "
    "set_score_request, set_transform_request",
}
autodoc_member_order = "bysource"
autodoc_typehints = "description"  # beside what the docstring says of each argument
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = False


def styled(gallery_conf: object, fname: str) -> None:
    """Let every example begin in overt's style."""
    import matplotlib as mpl

    from overt._figures import style

    mpl.rcdefaults()
    mpl.rcParams.update(style())


class GalleryOrder:
    """Sort key of the files in a gallery: stories in the order of the tour, others by name."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, filename: str) -> tuple[int, str]:
        from overt.stories import STORIES

        name = Path(filename).stem
        return (STORIES.index(name) if name in STORIES else 0), filename


sphinx_gallery_conf = {
    "reset_modules": ("conf.styled",),
    "capture_repr": (),  # what an example prints, and no stray objects
    "examples_dirs": ["../src/overt/stories", "lectures", "examples"],
    "gallery_dirs": ["auto_stories", "auto_lectures", "auto_examples"],
    "filename_pattern": r"/(plot_|stories/)",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 10_000,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "subsection_order": [
        f"examples/{topic}"
        for topic in ("linear", "completion", "networks", "robustness", "decay")
    ],
    "within_subsection_order": "conf.GalleryOrder",
    "plot_gallery": "True",
}

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]

html_favicon = "_static/logo.svg"
html_css_files = ["overt.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": [], "architecture": [], "changelog": []}
html_theme_options = {
    "logo": {
        "text": "overt",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
    },
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
}
html_context = {"default_mode": "auto"}
copyright = f"{author}, BSD 3-Clause"


def write_explorer(app: Any, error: Exception | None) -> None:
    """Put the explorer and the article beside the pages, each one file that works offline."""
    if error is None and app.builder.format == "html":
        from overt.explorer import render

        for source, name in (
            ("index.html", "explorer.html"),
            ("article.html", "article.html"),
        ):
            text = render(source).replace('href="index.html"', 'href="explorer.html"')
            (Path(app.outdir) / name).write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Hook the pages that are not made of documents into the build."""
    app.connect("build-finished", write_explorer)
