"""depthgauge inside other people's training loops: each framework is imported by its own file."""
