"""Reports that compare a database with other measurements."""
