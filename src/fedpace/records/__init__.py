"""Records of runs on disk: they are written round by round and read back as typed objects."""
