"""What lands on disk: folders that appear whole, the stage cache, the manifest."""
