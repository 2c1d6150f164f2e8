"""A draft tuned on the target's own answers to the user's prompts (`specexport tune`)."""
