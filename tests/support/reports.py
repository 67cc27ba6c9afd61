"""Names of what plug-ins of these tests add to reports."""

USED = "share of its time that a test used"
