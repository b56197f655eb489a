"""Tuning: candidates are built in parallel, measured one by one, verified, and kept in the database."""
