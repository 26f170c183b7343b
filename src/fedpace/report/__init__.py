"""What a comparison says: numbers (`tables`), a picture (`plots`) and a page (`page`)."""
