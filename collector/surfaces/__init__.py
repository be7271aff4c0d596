"""Durations of cases that differ only in their sizes: one model of what lies between the measured
ones, for queries and for the rounds of campaigns. Pure: arrays in, arrays out."""
