"""Plans that fit a device, and the largest sizes that do."""
