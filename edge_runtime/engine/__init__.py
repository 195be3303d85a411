"""The engine: schedule, run, sample, emit."""
