"""Names in a model repository, shared by the code that writes it and the code that runs in it."""

from __future__ import annotations

ENTRY, PATHS, CONFIG, BUNDLE = "1/model.py", "1/python_path", "config.pbtxt", "bundle"
TEXT, OPTIONS = "text_input", "options"
TEXT_OUTPUT, REASON, STATISTICS = "text_output", "finish_reason", "statistics"
INPUTS, OUTPUTS = (TEXT, OPTIONS), (TEXT_OUTPUT, REASON, STATISTICS)
OF = "of"  # the parameter of the model for whole answers that names the model which streams
