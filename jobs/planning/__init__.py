"""From a campaign to its plan, and the life of plans. Pure, but for reading and writing a plan."""
