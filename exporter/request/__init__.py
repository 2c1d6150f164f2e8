"""What a build is asked for, and what the engines make of it."""
