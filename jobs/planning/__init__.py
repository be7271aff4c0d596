"""Planning: from a campaign to its plan, and the life of plans.

Pure, except for reading and writing plans and merging what is committed before the next one.
"""
