"""Campaign status: what is known of a campaign, why it waits, and how this is printed."""
