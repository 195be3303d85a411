"""Other runtimes, each in a process and an interpreter of its own, behind one pipe protocol."""
