"""Names of other libraries lead to their documentation, by the addresses that these use.

It is what intersphinx does with inventories from the network, which a build has to do without.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

PAGES = {
    "numpy": "https://numpy.org/doc/stable/reference/generated/{name}.html",
    "scipy": "https://docs.scipy.org/doc/scipy/reference/generated/{name}.html",
    "sklearn": "https://scikit-learn.org/stable/modules/generated/{name}.html",
    "pandas": "https://pandas.pydata.org/docs/reference/api/{name}.html",
    "torch": "https://docs.pytorch.org/docs/stable/generated/{name}.html",
    "pathlib": "https://docs.python.org/3/library/pathlib.html#{name}",
    "os": "https://docs.python.org/3/library/os.html#{name}",
    "collections": "https://docs.python.org/3/library/collections.abc.html#{name}",
}
SPECIAL = {
    "torch.Tensor": "https://docs.pytorch.org/docs/stable/tensors.html#torch.Tensor",
    "torch.utils.data.DataLoader": "https://docs.pytorch.org/docs/stable/data.html#{name}",
}
SHORT = {
    "Tensor": "torch.Tensor",
    "nn.Module": "torch.nn.Module",
    "Path": "pathlib.Path",
}


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.Node | None:
    """Return a link to a name that no page of ours describes, if its home is known."""
    if node.get("refdomain") != "py":
        return None
    name = SHORT.get(node["reftarget"], node["reftarget"])
    page = SPECIAL.get(name) or PAGES.get(name.partition(".")[0])
    if page is None or "." not in name:
        return None
    return nodes.reference("", "", shown, refuri=page.format(name=name), internal=False)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("missing-reference", resolve)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
