"""What tests/flower/test_faults.py runs on a real federation."""
