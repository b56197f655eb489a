"""Tuning: candidates are built in parallel, measured on each GPU one by one, verified, and kept in the database."""
