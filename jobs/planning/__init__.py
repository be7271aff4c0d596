"""Planning: from a campaign to its plan, and the life cycle of plans.

Pure, except for reading and writing plans.
"""
