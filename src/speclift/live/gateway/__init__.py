"""A proxy in front of two pools of servers: connections, streams, observation."""
