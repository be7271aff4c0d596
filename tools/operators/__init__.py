"""What is known of operators: their recorded calls, releases and evidence."""
