"""What is known of a campaign, why it waits, and how that is told."""
