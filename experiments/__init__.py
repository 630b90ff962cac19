"""What is run: one file a system, read like the experiment section of its paper."""
