"""A surface of durations over shapes, learnt from some of its points: what the others would take,
how sure that is, and which to measure next. Pure: arrays in, arrays out."""
