"""The parts of the persuasion experiment."""
