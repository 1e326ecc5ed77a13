"""The papers that the statements come from, as entries of BibTeX."""

from __future__ import annotations

from collections.abc import Iterable

from overt.theorems.base import Theorem

BIBTEX = {
    "Implicit bias of dropout": """@inproceedings{mianjy2018implicit,
  author = {Mianjy, Poorya and Arora, Raman and Vidal, Ren{\\'e}},
  title = {On the Implicit Bias of Dropout},
  booktitle = {International Conference on Machine Learning},
  year = {2018},
  eprint = {1806.09777}, archiveprefix = {arXiv},
}""",
    "Structured dropout": """@inproceedings{pal2020structured,
  author = {Pal, Ambar and Lane, Connor and Vidal, Ren{\\'e} and Haeffele, Benjamin D.},
  title = {On the Regularization Properties of Structured Dropout},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year = {2020},
  eprint = {1910.14186}, archiveprefix = {arXiv},
}""",
    "One-way jumps": """@inproceedings{wang2024jumps,
  author = {Wang, Zihan and Jacot, Arthur},
  title = {Implicit Bias of {SGD} in {$L_2$}-Regularized Linear {DNNs}: One-Way Jumps from High to
    Low Rank},
  booktitle = {International Conference on Learning Representations},
  year = {2024},
  eprint = {2305.16038}, archiveprefix = {arXiv},
}""",
    "Thesis": """@phdthesis{mianjy-thesis,
  author = {Mianjy, Poorya},
  title = {Doctoral thesis on regularization by dropout and on adversarial training},
  school = {Johns Hopkins University},
}""",
}


def bibtex(statements: Iterable[Theorem]) -> str:
    """Return the entries of the papers that the statements come from, each once."""
    sources = [s.source for s in statements]
    found = [entry for name, entry in BIBTEX.items() if any(name in s for s in sources)]
    return "\n".join(found) or "% none of the four papers: " + "; ".join(sorted(set(sources)))
