"""Charts of the dashboard, as SVG."""
