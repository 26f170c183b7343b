"""What every layer stands on: errors, argument checks, random streams, atomic files. It imports nothing of fedpace."""
