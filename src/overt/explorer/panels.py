"""The five panels, by name, in the order of the page."""

from overt.explorer import completion, jumps, landscape, shrinkage, training
from overt.explorer.panel import Panel

PANELS: dict[str, Panel] = {
    module.PANEL.name: module.PANEL
    for module in (shrinkage, landscape, training, jumps, completion)
}
