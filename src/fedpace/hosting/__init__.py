"""The parts of a live server that do not depend on the framework; `fedpace.flower` and `fedpace.nvflare` use them."""
