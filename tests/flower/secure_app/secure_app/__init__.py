"""What tests/flower/test_secure_real.py runs on a real federation."""
