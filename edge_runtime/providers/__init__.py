"""onnxruntime: importing it, its sessions, its threads."""
