"""Launch and talk to real servers. Never imports an engine into this process, never knows the verdict."""
