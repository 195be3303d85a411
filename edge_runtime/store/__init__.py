"""Where models live on this machine, and how they get there."""
