"""One result for each element, whatever the layout: arithmetic, comparisons, logic, activations,
masks, and the step of an optimiser."""
