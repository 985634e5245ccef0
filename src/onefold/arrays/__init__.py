"""Arrays in files, read within a memory limit."""
