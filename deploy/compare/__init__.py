"""`wildflower compare`: methods, variants and seeds of one YAML file, one table and one page."""
