"""What answers a query: ranked facts."""
