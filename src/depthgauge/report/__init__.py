"""What was found, lowered to what a person reads."""
