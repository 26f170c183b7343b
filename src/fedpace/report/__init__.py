"""Reports of a comparison: numbers (`tables`), a picture (`plots`) and an HTML page (`page`)."""
