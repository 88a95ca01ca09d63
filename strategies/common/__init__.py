"""What three or more methods share."""
