"""What travels between the processes: frames, the channel they travel on, the tensor arena."""
