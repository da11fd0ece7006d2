"""Damaged `.fbir` texts, and what reads them twice."""
