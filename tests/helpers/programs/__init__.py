"""Programs and schedules to test with: random ones, and ones written by hand."""
