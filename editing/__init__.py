"""Changes of a bundle that is there: plans, an upload. Needs no torch and runs on devices."""
