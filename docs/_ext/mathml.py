"""Render TeX formulas as MathML, which browsers show without scripts or a network.

Displayed formulas are numbered on their page. The number links to the formula, by a name that is
made of the formula itself: a link holds until the formula changes.
"""

from __future__ import annotations

import hashlib
import re
from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# The converter would put the index of an accented letter below it, as for a sum.
ACCENTED = re.compile(r"(\\(?:bar|hat|tilde)\{\w\})_")
# Plain fences keep their size: a bar cannot even tell whether it opens or closes.
FENCES = re.compile('<mo(?: stretchy="false")?>([|\u2016⟨⟩])</mo>')
PLAIN = r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>'
# Between the name of a function and what it is applied to, unless a fence stands there.
APPLIED = re.compile(r"<mo>&ApplyFunction;</mo>(?!\s*<mo[^>]*>[(\[])")


def _mathml(node: nodes.Element, *, block: bool) -> str:
    tex = node.astext()
    if block and ("\\\\" in tex or "&" in tex) and "\\begin{" not in tex:
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"
    tex = ACCENTED.sub(r"\1{}_", tex)
    try:
        mathml = FENCES.sub(PLAIN, tex2mathml(tex, as_block=block))
        return APPLIED.sub('<mspace width="0.17em"/>', mathml)
    except (MathError, ValueError) as error:
        logger.warning("formula %r: %s", tex, error, location=node)
        return f"<code>{escape(tex)}</code>"


def inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(f'<span class="formula">{_mathml(node, block=False)}</span>')
    raise nodes.SkipNode


def block(translator: Any, node: nodes.Element) -> None:
    name = "formula-" + hashlib.sha256(node.astext().encode()).hexdigest()[:8]
    number = translator.formulas = getattr(translator, "formulas", 0) + 1
    translator.body.append(
        f'<div class="formula-block" id="{name}">{_mathml(node, block=True)}'
        f'<a class="formula-number" href="#{name}" title="Link to this formula">({number})</a>'
        "</div>\n"
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
