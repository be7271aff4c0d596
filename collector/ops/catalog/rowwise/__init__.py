"""One dimension at a time: folds, running sums, softmaxes, sorting, and what is chosen of a row."""
