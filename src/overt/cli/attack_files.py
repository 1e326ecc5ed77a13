"""What `overt attack` writes beside its figures: examples, pictures, and fingerprints."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from overt._files import write_whole


def save_examples(path: Path, net: Any, door: Any, x: Any, y: Any, moved: Any) -> Any:
    """Write clean and perturbed inputs with classes; return the logits of the perturbed ones."""
    import numpy as np

    from overt.robust.attacks.models import Subject, evaluating

    with evaluating(net):
        before, after = (Subject(net, v, door).clean_logits(256).cpu() for v in (x, moved))
    arrays = {"x": x, "y": y, "adversarial": moved.cpu().numpy()}
    arrays |= {
        "clean_class": before.argmax(1).numpy(),
        "adversarial_class": after.argmax(1).numpy(),
    }
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))
    return after


def draw(out: Path, found: Any, x: Any, y: Any, moved: Any, after: Any) -> list[tuple[str, str]]:
    """Draw the curve and, where inputs are images, some examples; return what was written."""
    import numpy as np

    from overt.robust.pictures import draw_examples

    found.plot().savefig(out / "attack.png", dpi=150)
    written = [("picture", "attack.png")]
    changed = (moved.cpu().numpy() != x).reshape(len(x), -1).any(1)
    shown = np.flatnonzero(changed & (np.asarray(after.argmax(1)) != np.ravel(y)))[:8]
    if x.ndim in (3, 4) and len(shown):
        parts = (x, moved.cpu().numpy(), np.ravel(y), after.argmax(1).numpy())
        draw_examples(*(part[shown] for part in parts)).savefig(out / "examples.png", dpi=150)
        written.append(("pictures", "examples.png"))
    return written


def digest(*arrays: Any) -> str:
    """Return a fingerprint of arrays: their shapes, types and bytes."""
    import numpy as np

    found = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def state_digest(net: Any) -> str | None:
    """Return a fingerprint of a module's weights."""
    if not hasattr(net, "state_dict"):
        return None
    return digest(*(v.detach().cpu().double().numpy() for v in net.state_dict().values()))
