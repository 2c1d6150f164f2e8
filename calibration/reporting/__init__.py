"""The report and the summary of a calibration."""
