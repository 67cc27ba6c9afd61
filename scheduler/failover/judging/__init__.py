"""What the coordinator concludes from what it hears: who is to be declared gone."""
