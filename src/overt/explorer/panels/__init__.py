"""The five panels, by name, in the order of the page."""

from overt.explorer.panel import Panel
from overt.explorer.panels import completion, jumps, landscape, shrinkage, training

PANELS: dict[str, Panel] = {
    module.PANEL.name: module.PANEL
    for module in (shrinkage, landscape, training, jumps, completion)
}
