"""The papers, their sections in order, and how to cite them."""

from __future__ import annotations

from dataclasses import dataclass

import overt


@dataclass(frozen=True)
class Paper:
    """A paper: its short name, the prefix of its ids, its modules in order, its BibTeX entry."""

    name: str
    prefix: str
    sections: tuple[str, ...]
    bibtex: str = ""


PAPERS = {
    "implicit_bias": Paper(
        "Implicit bias of dropout",
        "dropout",
        (
            "introduction",
            "tied",
            "untied",
            "training",
        ),
        r"""@inproceedings{mianjy2018implicit,
  author = {Mianjy, Poorya and Arora, Raman and Vidal, Ren{\'e}},
  title = {On the Implicit Bias of Dropout},
  booktitle = {International Conference on Machine Learning},
  year = {2018},
  eprint = {1806.09777}, archiveprefix = {arXiv},
}""",
    ),
    "structured": Paper(
        "Structured dropout",
        "structured",
        ("dropblock", "networks", "practice"),
        r"""@inproceedings{pal2020structured,
  author = {Pal, Ambar and Lane, Connor and Vidal, Ren{\'e} and Haeffele, Benjamin D.},
  title = {On the Regularization Properties of Structured Dropout},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year = {2020},
  eprint = {1910.14186}, archiveprefix = {arXiv},
}""",
    ),
    "one_way_jumps": Paper(
        "One-way jumps",
        "jumps",
        ("minima", "absorbing", "jumps"),
        r"""@inproceedings{wang2024jumps,
  author = {Wang, Zihan and Jacot, Arthur},
  title = {Implicit Bias of {SGD} in {$L_2$}-Regularized Linear {DNNs}: One-Way Jumps from High to
    Low Rank},
  booktitle = {International Conference on Learning Representations},
  year = {2024},
  eprint = {2305.16038}, archiveprefix = {arXiv},
}""",
    ),
    "thesis": Paper(
        "Thesis",
        "thesis",
        (
            "introduction",
            "shallow",
            "deep",
            "completion",
            "capacity",
            "training",
            "subnetworks",
            "robustness",
            "attacks",
        ),
        r"""@phdthesis{mianjy-thesis,
  author = {Mianjy, Poorya},
  title = {Doctoral thesis on regularization by dropout and on adversarial training},
  school = {Johns Hopkins University},
}""",
    ),
    "beyond": Paper(
        "overt (new)",
        "beyond",
        (
            "noises",
            "linear",
            "deep",
            "decay",
            "capacity",
        ),
    ),
}

OVERT = f"""@software{{overt,
  author = {{{{The overt developers}}}},
  title = {{overt: the regularizers hidden in training noise, written down, solved and certified}},
  version = {{{overt.__version__}}},
}}"""


def bibtex(papers: set[str] | None = None) -> str:
    """Return the entries of these papers, or of overt and of all, each once."""
    found = [
        about.bibtex
        for name, about in PAPERS.items()
        if papers is None or name in papers
    ]
    entries = [entry for entry in found if entry]
    if papers is None or not entries:
        entries.insert(0, OVERT)
    return "\n".join(entries)
