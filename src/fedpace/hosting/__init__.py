"""What every server around a Session does, whatever it reaches its clients with: for `flower` and `nvflare`."""
