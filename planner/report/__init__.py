"""A plan and a calibration as people and programs read them."""
