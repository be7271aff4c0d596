"""What is committed becomes a version of the database, before the next plan and after the last."""
