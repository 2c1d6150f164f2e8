"""Changes of a bundle that is there: plans, a draft less, an upload. Needs no torch and runs on devices."""
