"""Row normalisation, optionally after a sum or before quantisation to INT8."""
