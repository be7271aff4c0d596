"""Publishing of commits as versions of the database, before the next plan and after the last."""
