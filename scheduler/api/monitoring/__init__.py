"""What the API has of the monitoring of nodes: quarantine."""
