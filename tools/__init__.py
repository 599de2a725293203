"""What builds the course from its sources. Each module has one job."""
